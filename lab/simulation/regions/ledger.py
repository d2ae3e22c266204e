"""What may never happen with regions, and the ledger that sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from twicesafe import Key
from twicesafe._core.lifecycle import ORDER, is_expired
from twicesafe._core.regions.claiming import DOUBT
from twicesafe._core.regions.epochs import Epoch
from twicesafe._core.regions.following import Copied
from twicesafe._values.records import Row, State

from ..violations import Rules

if TYPE_CHECKING:
    from .world import World

__all__ = ["INVARIANTS", "Ledger", "broken"]

INVARIANTS: Final = Rules(
    {
        # at a store, after every request
        "records never go back": "no request replaces a record by one of a lower fence, or of an earlier state at the same fence",
        "answers stay": "no request replaces an answer by a record without one",
        "new keys are above the base": "once an epoch is open, every new record in its region has a fence above its base",
        "epochs rise": "the epoch in the register only rises, and each is open in one region only",
        "copies take no work": "no copy replaces a claim under which the region that serves has begun work",
        # at every start of a handler
        "nothing starts after the cut": "once the cut of a later epoch has passed, no worker starts under an older one",
        "fences rise with epochs": "a later epoch gives a key higher fences than every earlier one",
        "one start per fence": "no fence is given to two starts",
        "one worker at a time": "in one epoch, no key starts again before the lease of an earlier start is over, unless its failure is on record",
        "keys in doubt are not run": "under hold, no key starts in two epochs, unless its failure is on record",
        # over the whole schedule
        "repeats are counted": "a key that started in two epochs, without a recorded failure, is recorded as in doubt, or was named when it was settled",
        "answers are learned": "settling gives every held key the answer that the old region had recorded by then",
        "one answer": "a key has two answers only if that is counted",
        "everything ends": "once faults stop, every key is completed or held, and nothing is in doubt",
    }
)

broken = INVARIANTS.broken


BESIDE: Final = 450
"""Milliseconds after a start, in which no other start can have taken over: half of a lease, less a hop."""


class Start(NamedTuple):
    epoch: int
    fence: int
    region: str
    at: int = 0


class Ledger:
    def __init__(self, world: World) -> None:
        self._world = world
        self.starts: dict[bytes, list[Start]] = {}
        self.answers: dict[bytes, set[bytes | None]] = {}
        self.named: set[str] = set()
        self.failed: set[tuple[bytes, int]] = set()
        """Keys and fences of starts whose failure is on record: another start is what the policy says."""
        self.passes: dict[int, int] = {}
        """When the pass began that settled an epoch."""
        self.given_up = False
        """An operator has said that unknown keys are new: repeats are his."""
        self._opened: dict[int, Epoch] = {}

    # -- at a store ---------------------------------------------------------------------------

    def wrote(self, store: str, before: Row | None, after: Row | None, now: int) -> None:
        if after is None or before is after:
            return
        if after.error.startswith(DOUBT) and (before is None or before.error != after.error):
            self._world.seen["doubt", after.error.partition(": ")[2].partition(",")[0]] += 1
        if before is None or is_expired(before, now):
            return
        here, there = (before.fence, ORDER[before.state]), (after.fence, ORDER[after.state])
        if there < here:
            broken("records never go back", f"{store}: {before.state} {here} became {there}")
        if ORDER[before.state] == ORDER[State.COMPLETED] > ORDER[after.state]:
            broken("answers stay", f"{store}: {before.state} became {after.state}")

    def copied(self, store: str, before: Row, after: Row | None, now: int) -> None:
        """A follower, or a move, has copied over a record."""
        if (
            after is None or after.owner == before.owner or before.state is not State.IN_PROGRESS
            or before.lease_until <= now
        ):  # fmt: skip
            return
        newest = max(self._opened, default=0)
        for each in self.starts.get(before.id, ()):
            if (each.epoch, each.region, each.fence) == (newest, store, before.fence):
                broken("copies take no work", f"{store}: {each} became {after.state} {after.fence}")

    def made(self, store: str, after: Row) -> None:
        """A claim has made a record where there was none. A copy of an older one keeps its fence."""
        newest = max(self._opened, default=0)
        epoch = self._opened.get(newest)
        if epoch is not None and epoch.region == store and after.fence <= epoch.base:
            broken(
                "new keys are above the base",
                f"{after.fence} in epoch {epoch.number}: {epoch.base}",
            )

    def registered(self, document: bytes) -> None:
        epoch = msgspec.json.decode(document, type=Epoch)
        newest = max(self._opened, default=0)
        if epoch.number < newest:
            broken("epochs rise", f"{newest} became {epoch.number}")
        known = self._opened.setdefault(epoch.number, epoch)
        if known.region != epoch.region:
            broken(
                "epochs rise", f"epoch {epoch.number} is of {known.region} and of {epoch.region}"
            )

    # -- at a start, and at an answer ---------------------------------------------------------

    def start_without_epoch(self, region: str) -> None:
        """The register has told the worker meanwhile that its region serves this home no more."""
        broken("nothing starts after the cut", f"{region} starts, and serves no open epoch")

    def start(self, key: Key, region: str, epoch: int, fence: int) -> None:
        world = self._world
        now = world.wall()
        for later in self._opened.values():
            if later.number > epoch and later.cut < now:
                broken(
                    "nothing starts after the cut",
                    f"{region} starts under {epoch}, cut by {later.number}",
                )
        before = self.starts.setdefault(key.id, [])
        unfinished = self._unfinished(key.id)
        kinds = {each.epoch == epoch for each in before}
        what = (
            "first" if not kinds else "in a later epoch" if False in kinds else "again in its epoch"
        )
        world.seen["start", what] += 1
        for each in before:
            beside = each.epoch == epoch and now - each.at < BESIDE
            if beside and (key.id, each.fence) not in self.failed:
                broken("one worker at a time", f"{each}, and then {fence} in {region}")
            if each.fence == fence:
                broken("one start per fence", f"{fence} in {each.region} and in {region}")
            if (each.epoch < epoch and each.fence > fence) or (
                each.epoch > epoch and each.fence < fence
            ):
                broken("fences rise with epochs", f"{each} and then {fence} in epoch {epoch}")
        if unfinished - {epoch} and world.plan.unknown == "hold" and not self.given_up:
            broken("keys in doubt are not run", f"{before}, and {region} in {epoch}")
        before.append(Start(epoch, fence, region, now))

    def _unfinished(self, id_: bytes) -> set[int]:
        """The epochs whose last start has no recorded failure."""
        last = {each.epoch: each.fence for each in sorted(self.starts.get(id_, ()))}
        return {epoch for epoch, fence in last.items() if (id_, fence) not in self.failed}

    def probe(self, key: Key) -> bool | None:
        """A probe that sees all effects so far. What zombies will do it does not know."""
        return True if self.starts.get(key.id) else False if len(key.value) % 2 else None

    def settled(self, found: Copied, epoch: int) -> None:
        self.passes[epoch] = max(self.passes.get(epoch, 0), found.until)
        self._world.seen["settled", "learned"] += found.learned
        self._world.seen["settled", "twice"] += found.twice_count
        self.named |= set(found.twice)

    # -- the end ------------------------------------------------------------------------------

    def close(self, rows: dict[bytes, list[Row]]) -> None:
        for id_, starts in self.starts.items():
            marked = any(row.error.startswith(DOUBT) for row in rows.get(id_, ()))
            counted = marked or id_[:4].hex() in self.named or self.given_up
            if len(self._unfinished(id_)) > 1 and not counted:
                broken("repeats are counted", f"{starts}")
            if len(self.answers.get(id_, ())) > 1 and not counted:
                broken("one answer", f"{self.answers[id_]}")

    def learned(self, here: Row, there: Row | None, epoch: Epoch) -> None:
        """`here`: in the region that serves, at the end; `there`: in the other one."""
        settled = self.passes.get(epoch.number, 0)
        if (
            here.state is State.HELD and here.error.startswith(DOUBT) and there is not None
            and ORDER[there.state] == ORDER[State.COMPLETED] and there.fence <= epoch.base
            and there.changed_at + 100 < settled
        ):  # fmt: skip
            broken(
                "answers are learned", f"{here.value} is held, and {epoch.source} has its answer"
            )

    def answered(self, key: Key, result: Any) -> None:
        if result is not None:
            self.answers.setdefault(key.id, set()).add(result)
