"""What `Regions` and `AsyncRegions` share: settings, and which flow does what. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Generic, TypeVar
from uuid import UUID

import msgspec

from .._core.protocol import Browse, Count, Page
from .._core.regions.claiming import DOUBT, HERE, Region, Unknown
from .._core.regions.epochs import (
    REGISTER,
    SOURCE,
    TARGET,
    Epoch,
    On,
    RegionFlow,
    create,
    key_of,
)
from .._core.regions.failover import Move, current
from .._core.regions.following import progress_of
from .._core.regions.pausing import label_of
from .._core.searching import MOST
from .._values.clocks import since_boot, wall_clock
from .._values.keys import Key
from .._values.records import Record, Row
from .._values.settings import Duration, expect, seconds
from ..errors import ConfigurationError, UsageError
from ..stores._base import AsyncStore, Store
from ._late_stores import LateStores, usable

__all__ = [
    "RegionStatus",
    "RegionsBase",
    "copies_of",
    "count_doubts",
    "lag_of",
    "list_doubts",
    "sent_at_of_uuid7",
    "status_of",
]

S = TypeVar("S", bound=Store | AsyncStore)

UNKNOWN: Final = ("hold", "run")


def sent_at_of_uuid7(key: Key) -> datetime | None:
    """When a key that is a UUIDv7 was made; None: it is not a UUIDv7, or its time is after the year 9999."""
    try:
        found = UUID(key.value)
        if found.version != 7:
            return None
        return datetime.fromtimestamp((found.int >> 80) / 1000, UTC)
    except ValueError:
        return None


class RegionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about the keys of one home."""

    home: str
    epoch: Epoch
    lags: dict[str, float | None]
    """Seconds that each other region is behind the one that serves; None: unknown."""
    uncopied: dict[str, int]
    """Records that each other region lacks, because they cannot be read, were refused there or are
    late. Their keys would be in doubt after a failover."""
    in_doubt: int
    """Records of the serving region that were in doubt: held, run nevertheless, or found to be done."""


class RegionsBase(Generic[S]):
    """Settings, checked; and the flows of every method. `S`: blocking stores, or async ones."""

    def __init__(
        self,
        stores: Mapping[str, S],
        *,
        register: S,
        name: str = "default",
        home: str | Callable[[Key], str] | None = None,
        sent_at: Callable[[Key], datetime | None] = sent_at_of_uuid7,
        unknown: Unknown = "hold",
        lease: Duration = 10.0,
        skew: Duration = 5.0,
        overlap: Duration = 60.0,
        max_lag: Duration = 60.0,
    ) -> None:
        if not isinstance(stores, LateStores):  # which checks each one that it opens
            stores = {region: usable(region, store) for region, store in stores.items()}
        self._stores: Mapping[str, S] = stores
        self._register = register
        self._owned: tuple[Any, ...] = ()
        expect(len(stores) > 1, "stores", list(stores), "name two regions or more")
        expect(
            unknown in UNKNOWN or callable(unknown),
            "unknown",
            unknown,
            "use 'hold', 'run' or a function",
        )
        self.name = Key(name).value
        first = next(iter(self._stores))
        home = first if home is None else home
        self._homes = tuple(self._stores) if callable(home) else (self._region(home),)
        self._home = home if callable(home) else lambda _: str(home)
        self._sent_at, self._unknown = sent_at, unknown
        self._lease, self._skew = seconds(lease, "lease"), seconds(skew, "skew")
        expect(self._lease > 0, "lease", lease, "use more than 0 seconds")
        self._overlap, self._max_lag = seconds(overlap, "overlap"), seconds(max_lag, "max_lag")
        for each, given in (("skew", skew), ("overlap", overlap), ("max_lag", max_lag)):
            expect(seconds(given, each) >= 0, each, given, "use 0 or more seconds")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(self._stores)}; register: {self._register.url}>"

    def _places(self, source: str, target: str) -> dict[str, S]:
        return {
            SOURCE: self._stores[self._region(source)],
            TARGET: self._stores[self._region(target)],
            REGISTER: self._register,
        }

    def _region(self, name: str) -> str:
        if name not in self._stores:
            raise ConfigurationError(
                f"there is no region {name!r}; known: {', '.join(self._stores)}"
            )
        return name

    def home(self, key: Key) -> str:
        """The home of this key: the region that serves it until it is moved."""
        return self._region(self._home(key))

    def _may_be_of(self, row: Row, label: str) -> bool:
        """Whether the key of this record has this home. Those of other `Regions` are not known here."""
        if label not in {label_of(key_of(self.name, each)) for each in self._homes}:
            return True
        home = self._home(Key(row.value, scope=row.scope, absolute=True))
        return label == label_of(key_of(self.name, home))

    def _epoch_key(self, home: str) -> Key:
        return key_of(self.name, self._region(home))

    def _worker(self, region: str) -> Region:
        return Region(
            self._region(region),
            self.name,
            home=self.home,
            sent_at=self._sent_ms,
            unknown=self._unknown,
            lease=self._lease,
            clock=since_boot,
        )

    def _sent_ms(self, key: Key) -> int | None:
        found = self._sent_at(key)
        if found is None:
            return None
        if found.tzinfo is None:
            raise UsageError("sent_at= returned a time without a time zone", key=key)
        return int(found.timestamp() * 1000)

    def _move(self, home: str, to: str, source: str = "") -> Move:
        lease, skew, overlap = (round(s * 1000) for s in (self._lease, self._skew, self._overlap))
        key = self._epoch_key(home)
        return Move(
            key,
            self._region(to),
            lease,
            skew,
            overlap,
            wall_clock,
            bool(source) and self._stores[source].capabilities.steps,
            ours=lambda found: self._home(found) == home,
            source=source,
        )

    def _create(self) -> RegionFlow[list[Epoch]]:
        made: dict[str, Epoch] = {}
        for home in self._homes:
            made[home] = yield from create(self._epoch_key(home), home, wall_clock())
        return list(made.values())

    def _epochs(self) -> RegionFlow[dict[str, Epoch]]:
        found = {}
        for home in self._homes:
            found[home] = (yield from current(self._epoch_key(home)))[0]
        return found


def lag_of(region: str) -> RegionFlow[float | None]:
    return (yield from copies_of(region))[0]


def copies_of(region: str) -> RegionFlow[tuple[float | None, int]]:
    """The lag of the copies, and how many records are missing among them."""
    progress, _ = yield from progress_of(region)
    return progress.lag(wall_clock()), len(progress.left)


def status_of(
    home: str, epoch: Epoch, copies: dict[str, tuple[float | None, int]], doubts: int
) -> RegionStatus:
    return RegionStatus(
        home=home,
        epoch=epoch,
        lags={other: lag for other, (lag, _) in copies.items()},
        uncopied={other: number for other, (_, number) in copies.items()},
        in_doubt=doubts,
    )


def count_doubts() -> RegionFlow[int]:
    return (yield On(HERE, Count(MOST, error=DOUBT)))  # type: ignore[no-any-return]


def list_doubts(limit: int) -> RegionFlow[list[Record]]:
    page: Page = yield On(HERE, Browse(limit, error=DOUBT))
    return [row.view() for row in page.rows]
