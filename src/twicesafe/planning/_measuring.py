"""Measuring: what a store and a running receiver know about the workload.

    measured = measure(receiver)             a store: rate, bytes, retention, late duplicates that ran again
    seen = DuplicateSample()                 an observer: the share of duplicates and their ages
    receiver = Receiver.open(url, observers=[seen])

A store does not count repeats, since a repeat writes nothing: how many duplicates come, and how old they
are, only an observer sees. A duplicate after the window is seen as late only if its old record was still
there. What was swept before is new work to everyone.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from .._values.own_records import is_own
from .._values.quantities import percent_text
from .._values.records import Cause, Record, State
from .._values.settings import expect
from ..errors import ConfigurationError
from ..events import Event, Replayed, Started
from ..stores._base import Finding
from ._delays import ObservedDelays

if TYPE_CHECKING:
    from ..receiver import Receiver

__all__ = ["DuplicateSample", "Measured", "measure", "measured_from"]

SAMPLE: Final = 10_000
MEASURED: Final = 2000
"""Enough for a rate, a median and a mean; a database sorts more than this on disk, which takes seconds."""
_LONGER: Final = (
    "raise the retention above the time for which senders retry; `twicesafe plan` computes it"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What the newest records of a store show."""

    records: int
    """How many were read."""
    span: float
    """Seconds from the first to the last of them."""
    new_keys: float | None
    """New keys per second in that time; None: fewer than two records, or all at one moment."""
    result: float
    """Mean bytes of a result."""
    key: float
    """Mean bytes of a key's value and scope."""
    retention: float | None
    """Median retention; None: no record has one yet."""
    late: int
    """Records of duplicates that came after the retention, and ran again."""

    def findings(self) -> list[Finding]:
        """What `doctor` says about the window: a warning if late duplicates ran again."""
        if not self.records:
            return []
        if not self.late:
            none = f"none of the {self.records:,} newest records is a duplicate that came after the retention"
            return [Finding("ok", f"{none} and ran again", "")]
        return [
            Finding(
                "warn",
                f"{self.late:,} of the {self.records:,} newest records are duplicates that came after the "
                "retention and ran again",
                _LONGER,
            )
        ]

    def rate(self, duplicates: float) -> float:
        """Deliveries per second, at this share of duplicates."""
        if self.new_keys is None:
            raise ConfigurationError(
                f"the rate cannot be measured from {self.records} records in {self.span:g} seconds; "
                "give it: rate='500/s'"
            )
        return self.new_keys / (1 - duplicates)


def measure(receiver: Receiver, limit: int = MEASURED) -> Measured:
    """Read the newest records of a store, at most ``limit``."""
    found, _ = receiver.records_page(limit=limit)  # one page: Redis scans all keys for each
    return measured_from(found)


def measured_from(records: Iterable[Record]) -> Measured:
    """The same from records that you have: of an `AsyncReceiver`, of one scope, of one day."""
    found = [record for record in records if not is_own(record.scope)]
    made = [record.created_at.timestamp() for record in found]
    span = max(made) - min(made) if made else 0.0
    # An expired record that ran again is a new record; one that is in progress has no retention yet.
    kept = [
        (record.expires_at - record.changed_at).total_seconds()
        for record in found
        if record.expires_at is not None and record.state is State.COMPLETED
    ]
    named = [record for record in found if record.value]
    return Measured(
        records=len(found),
        span=span,
        new_keys=(len(found) - 1) / span if span else None,
        result=_mean([record.result_bytes or 0 for record in found]),
        key=_mean([sum(len(p.encode()) for p in (r.value, *r.scope)) for r in named]),
        retention=statistics.median(kept) if kept else None,
        late=sum(record.cause is Cause.RETENTION_EXPIRED for record in found),
    )


def _mean(numbers: list[int]) -> float:
    return statistics.fmean(numbers) if numbers else 0.0


class DuplicateSample:
    """An observer that counts deliveries and keeps a random sample of the ages of duplicates.

    The sample has at most ``size`` ages, each duplicate with the same chance (algorithm R). Duplicates that
    were refused while the first delivery ran are not counted: they have no age. Threads may share it: a race
    can lose a count, never a call.
    """

    def __init__(self, size: int = SAMPLE, seed: int | None = None) -> None:
        expect(size > 0, "size", size, "use 1 or more")
        self._size = size
        self._random = random.Random(seed)
        self._ages: list[float] = []
        self.first = 0
        """First deliveries."""
        self.repeats = 0
        """Duplicates that got the recorded answer."""
        self.late = 0
        """Duplicates that came after the window and ran again."""

    def __call__(self, event: Event) -> None:
        if isinstance(event, Replayed):
            self.repeats += 1
            if event.age is not None:
                self._keep(event.age)
        elif isinstance(event, Started) and event.attempt == 1:
            if event.cause is Cause.RETENTION_EXPIRED:
                self.late += 1
            elif event.cause is None:
                self.first += 1

    def _keep(self, age: float) -> None:
        if len(self._ages) < self._size:
            self._ages.append(max(age, 0.0))
        elif (place := self._random.randrange(self.repeats)) < self._size:
            self._ages[place] = max(age, 0.0)

    @property
    def duplicates(self) -> float:
        """The share of deliveries that were duplicates."""
        total = self.first + self.repeats + self.late
        return (self.repeats + self.late) / total if total else 0.0

    @property
    def covered(self) -> float | None:
        """The share of the duplicates seen that came within the window; None: none was seen."""
        total = self.repeats + self.late
        return self.repeats / total if total else None

    def finding(self) -> Finding:
        """The window against the duplicates seen, in the form of `doctor`: "covers 99.2 % of …"."""
        covered, total = self.covered, self.repeats + self.late
        if covered is None:
            return Finding("ok", "no duplicate was seen yet", "")
        level: Literal["ok", "warn"] = "warn" if self.late else "ok"
        what = f"the window covers {percent_text(covered)} of the {total:,} duplicates seen"
        return Finding(level, what, _LONGER if self.late else "")

    def delays(self) -> ObservedDelays:
        """The ages as a distribution; late duplicates in proportion to the sample."""
        late = round(self.late * len(self._ages) / self.repeats) if self.repeats else self.late
        return ObservedDelays(self._ages, late=late)
