"""Which server is the primary of a key, how long we trust that, and when we ask again.

    OneServer   the address of the URL
    Sentinels   the primary that the sentinels name
    Slots       the primaries of a Cluster, by slot

This knowledge is never kept forever. A time-out, a lost connection, a refusal (`READONLY`, `LOADING`,
`NOREPLICAS` …) and a restart end it (`distrust`, `check_server`). What a sentinel named also expires,
after `TRUST`. A primary that hung and was replaced does not know it when it wakes up, and accepts
writes. So a command goes to a server that a sentinel named a moment ago, and an answer that took
longer counts only if the server is still the primary (`is_still_primary`). What can still go wrong is
in docs/explanation/beliefs.md.
"""

from __future__ import annotations

import binascii
import time
from collections.abc import Callable, Generator, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import msgspec

from ...errors import StoreUnavailableError
from .error_messages import explain
from .settings import Address, Settings

__all__ = [
    "WHO_ARE_YOU",
    "Line",
    "NotPrimaryError",
    "OneServer",
    "Packed",
    "RoundTrip",
    "RoundTrips",
    "Sentinels",
    "Servers",
    "Slots",
    "by_line",
    "count_of",
    "info_fields",
    "servers_of",
    "slot_of",
]

T = TypeVar("T")

SLOTS: Final = 16384

TRUST: Final = 1.0
"""The most seconds for which we trust what a sentinel named, or a slow answer of a Cluster node."""

WHO_ARE_YOU: Final = (b"INFO", b"server", b"replication")
"""Sent first on every new connection to a primary that a sentinel named."""


class Packed(msgspec.Struct, gc=False):
    """Many commands, already as bytes. They count as one: its reply is the list of their replies."""

    data: bytes
    count: int


Line: TypeAlias = tuple[Any, ...] | Packed


def count_of(lines: list[Line]) -> int:
    """How many replies come."""
    return sum(line.count if type(line) is Packed else 1 for line in lines)


def by_line(lines: list[Line], replies: list[Any]) -> list[Any]:
    """The replies of packed commands as one."""
    if Packed not in map(type, lines):
        return replies
    rest = iter(replies)
    return [
        list(islice(rest, line.count)) if type(line) is Packed else next(rest) for line in lines
    ]


class RoundTrip(msgspec.Struct, gc=False):
    """Commands to send, per server. The reply: per server, its replies in order, or an exception."""

    lines: dict[Address, list[Line]]
    fresh: bool = False
    """Use a new connection: an idle one may be dead, and these commands must not be sent twice."""
    meanwhile: Callable[[], object] = bool
    """Called once after sending: what we do while the servers work."""


RoundTrips: TypeAlias = Generator[RoundTrip, dict[Address, Any], T]
"""A generator that yields round trips; the blocking and the async store perform them."""


class NotPrimaryError(ConnectionError):
    """The server at this address is not the primary: ask the sentinels again."""


def slot_of(key: bytes) -> int:
    begin = key.find(b"{")
    if begin >= 0:
        end = key.find(b"}", begin + 1)
        if end > begin + 1:
            key = key[begin + 1 : end]
    return binascii.crc_hqx(key, 0) % SLOTS


class Servers:
    """The base class. Used by many threads, so its knowledge is replaced as a whole, never changed."""

    checks_new_connections: bool = False
    """A new connection must send `WHO_ARE_YOU` first, and pass the reply to `check_server`."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self.clock = clock
        self.changed: Callable[[], object] = bool
        """Called when another server became the primary."""

    @property
    def direct(self) -> Address | None:
        """The server of every command, if it is known now without asking."""
        return None

    def locate(self, key: bytes, since: float) -> RoundTrips[Address]:
        """The server of a key. ``since``: the start of the request; older knowledge may be refreshed."""
        raise NotImplementedError

    def primaries(self, since: float) -> RoundTrips[list[Address]]:
        raise NotImplementedError

    def distrust(self) -> None:
        """Something went wrong: what we know may be outdated."""

    def refresh(self, suspect: Address | None = None) -> RoundTrips[None]:
        """Ask again now, if that can help. ``suspect``: the server that failed is asked last."""
        yield from ()

    def check_server(self, address: Address, info: bytes) -> None:
        """Check the reply of a server to `WHO_ARE_YOU`; raises if it is not the primary."""

    def is_still_primary(self, address: Address, sent: float) -> RoundTrips[bool]:
        """Whether this server's answer counts. ``sent``: when the command was sent."""
        yield from ()
        return True

    def serves(self, address: Address, key: bytes) -> bool:
        """Whether this is the server of this key, as far as we know now."""
        return True


class OneServer(Servers):
    """One server: there is no other to choose, and it refuses writes by itself."""

    @property
    def direct(self) -> Address | None:
        return self._settings.addresses[0]

    def locate(self, key: bytes, since: float) -> RoundTrips[Address]:
        yield from ()
        return self._settings.addresses[0]

    def primaries(self, since: float) -> RoundTrips[list[Address]]:
        yield from ()
        return [self._settings.addresses[0]]


class _Named(NamedTuple):
    """What a sentinel named as the primary."""

    home: Address
    until: float
    epoch: int = 0
    run: str = ""
    """The run id of the server that we found there."""


class Sentinels(Servers):
    """The primary that the sentinels name."""

    checks_new_connections = True

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(settings, clock)
        self._named: _Named | None = None
        self._order: Sequence[Address] = settings.addresses
        """The one that answered last is asked first, so that a dead one delays us only once."""

    @property
    def direct(self) -> Address | None:
        named = self._named
        return named.home if named is not None and self.clock() < named.until else None

    def locate(self, key: bytes, since: float) -> RoundTrips[Address]:
        return self.direct or (yield from self._ask())

    def primaries(self, since: float) -> RoundTrips[list[Address]]:
        return [(yield from self.locate(b"", since))]

    def distrust(self) -> None:
        named = self._named
        if named is not None:
            self._named = named._replace(until=0.0)

    def refresh(self, suspect: Address | None = None) -> RoundTrips[None]:
        """Nothing: the next command asks the sentinels, because nothing is trusted."""
        yield from ()

    def check_server(self, address: Address, info: bytes) -> None:
        fields = info_fields(info)
        if fields.get("role") != "master":
            raise NotPrimaryError(f"{address} is a replica, or was demoted")
        named = self._named
        if named is None or named.home != address:
            return
        run = fields.get("run_id", "")
        # Another process than before: it may have restarted without its data, or be another server at
        # this address. A sentinel may know more by now, so ask again.
        until = named.until if named.run in ("", run) else 0.0
        self._named = named._replace(run=run, until=until)

    def is_still_primary(self, address: Address, sent: float) -> RoundTrips[bool]:
        home = self.direct
        if home is None:
            home = yield from self._ask()
        return home == address

    def serves(self, address: Address, key: bytes) -> bool:
        named = self._named
        return named is not None and named.home == address

    def _ask(self) -> RoundTrips[Address]:
        settings, known = self._settings, self._named
        name = settings.primary.encode()
        lines = [
            (b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", name),
            (b"SENTINEL", b"MASTER", name),
        ]
        problem: Any = "none answered"
        best: _Named | None = None
        for sentinel in self._order:
            asked = self.clock()
            answer = (yield RoundTrip({sentinel: list(lines)}))[sentinel]
            if isinstance(answer, Exception):
                problem = answer
                continue
            where, details = answer
            if not isinstance(where, list) or len(where) != 2:
                problem = f"no primary is watched as {settings.primary!r}"
                continue
            fields = _pairs(details)
            named = _Named(
                Address(where[0].decode(), int(where[1])),
                asked + _trust(fields),
                int(fields.get("config-epoch", known.epoch if known else 0)),
            )
            if best is None or named.epoch > best.epoch:
                best, self._order = named, _first(sentinel, self._order)
            if known is None or named.epoch >= known.epoch:
                break
            # It missed a failover that we know of. If all of them did, the sentinels were set up again.
        if best is None:
            cause = problem if isinstance(problem, Exception) else None
            raise StoreUnavailableError(
                f"{settings.url}: the sentinels name no primary ({problem})"
            ) from cause
        if known is not None and known.home == best.home:
            best = best._replace(run=known.run)
        self._named = best
        if known is not None and known.home != best.home:
            self.changed()
        return best.home


class Slots(Servers):
    """A Cluster: the primary of each slot."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(settings, clock)
        self._slots: list[Address | None] = []
        self._refreshed_at = 0.0
        self._order: Sequence[Address] = settings.addresses

    def locate(self, key: bytes, since: float) -> RoundTrips[Address]:
        slot = slot_of(key)
        if not self._slots or (self._slots[slot] is None and self._refreshed_at < since):
            yield from self.refresh()
        address = self._slots[slot]
        if address is None:
            raise StoreUnavailableError(f"{self._settings.url}: no node serves this key's slot")
        return address

    def primaries(self, since: float) -> RoundTrips[list[Address]]:
        if not self._slots or (None in self._slots and self._refreshed_at < since):
            yield from self.refresh()
        return sorted({address for address in self._slots if address is not None})

    def refresh(self, suspect: Address | None = None) -> RoundTrips[None]:
        """Use the first complete slot map, or the fullest: a node that was removed has an empty one."""
        known = {address for address in self._slots if address is not None}
        candidates = [*self._order, *sorted(known.difference(self._order))]
        candidates.sort(key=lambda address: address == suspect)
        problem: Any = "none answered"
        best: list[Address | None] = []
        began = self.clock()
        for address in candidates:
            answer = (yield RoundTrip({address: [(b"CLUSTER", b"SLOTS")]}))[address]
            if not isinstance(answer, Exception):
                answer = answer[0]
            if isinstance(answer, Exception):
                problem = answer
                continue
            slots = _map(answer, address)
            if not best or slots.count(None) < best.count(None):
                best = slots
                self._order = _first(address, self._order)
            if None not in slots:
                break
        if not best:
            raise (
                explain(problem, self._settings.url)
                if isinstance(problem, Exception)
                else StoreUnavailableError(f"{self._settings.url}: {problem}")
            )
        before, self._slots, self._refreshed_at = self._slots, best, began
        if before and before != best:
            self.changed()

    def is_still_primary(self, address: Address, sent: float) -> RoundTrips[bool]:
        """A node that answers late may have been replaced, so ask the others."""
        if self.clock() - sent > TRUST:
            yield from self.refresh(address)
            return address in self._slots
        return True

    def serves(self, address: Address, key: bytes) -> bool:
        return not key or self._slots[slot_of(key)] == address


def servers_of(settings: Settings) -> Servers:
    kinds = {"single": OneServer, "sentinel": Sentinels, "cluster": Slots}
    return kinds[settings.kind](settings)


def _trust(fields: dict[str, str]) -> float:
    """At most half of the time after which a sentinel considers a server down."""
    return min(TRUST, int(fields.get("down-after-milliseconds", 2000 * TRUST)) / 2000)


def _first(chosen: Address, order: Sequence[Address]) -> Sequence[Address]:
    if chosen not in order:
        return order
    return (chosen, *(address for address in order if address != chosen))


def _map(answer: Any, asked: Address) -> list[Address | None]:
    slots: list[Address | None] = [None] * SLOTS
    for first, last, (host, port, *_), *_ in answer:
        served = Address((host or b"").decode() or asked.host, int(port))
        slots[first : last + 1] = [served] * (last + 1 - first)
    return slots


def info_fields(text: bytes) -> dict[str, str]:
    """The fields of a reply to INFO or CLUSTER INFO."""
    lines = text.decode(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _pairs(reply: Any) -> dict[str, str]:
    """A list of names and values as a dict; empty if this user may not ask."""
    if not isinstance(reply, list):
        return {}
    words = [named.decode(errors="replace") for named in reply if isinstance(named, bytes)]
    return dict(zip(words[::2], words[1::2], strict=False))
