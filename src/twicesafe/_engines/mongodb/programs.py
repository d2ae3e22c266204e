"""The programs of MongoDB: each request as conditional writes.

A program yields a `DriverCall` and receives the driver's reply. A claim is one findAndModify that
inserts the document or returns the one that is there, so first deliveries and repeats are one call
each. An owner's request is one update (`versioned.deciding`).

The driver repeats a write whose reply was lost only if the server recognises the repeat (retryable writes of
replica sets). So no write happens twice, not even an operator's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ..._core.protocol import Ack, Claimed, ClaimRequest, Request
from ...errors import StoreUnavailableError
from ...stores._base import Program
from ...stores._batching import error_for_each
from ..versioned.record import OwnerWrite, Versioned, WriteRefused
from .collection import HELLO, ask_time
from .documents import (
    DUPLICATE,
    Write,
    bulk,
    change_of,
    find,
    get,
    insert_claim,
    insert_of,
    record_of,
    replace,
    update,
    upsert,
)
from .sweep_and_search import SweepAndSearch

__all__ = ["MongodbPrograms"]

OWNERS: Final = frozenset({"renew", "complete", "fail"})

ASKED: Final = object()
"""In place of an answer that is still to come."""


class MongodbPrograms(SweepAndSearch):
    def perform(self, ask: Request) -> Program[Any]:
        """MongoDB's replies do not tell its time, so it is asked, twice a minute."""
        requested = super().perform(ask)
        return self._in_time(requested) if self.clock.due(HELLO) else requested

    def _in_time(self, program: Program[Any]) -> Program[Any]:
        yield from ask_time(self.clock)
        return (yield from program)

    def claim(self, ask: ClaimRequest) -> Program[Claimed]:
        """Like `settle` for a key without a record, but a repeat, which finds one, builds no new row."""
        now = self.clock.now()
        found = yield insert_claim(ask, now)
        if found is None:
            answer, after = self.decide(ask, None, now)
            assert after is not None, "a claim of a new key is always won"
            self.wrote(after)
            return answer  # type: ignore[no-any-return]
        record = (yield from self.load(ask.id)) if found is DUPLICATE else record_of(found)
        answer, after = self.decide(ask, record)
        if after is None:
            return answer  # type: ignore[no-any-return]
        return (yield from self.settle(ask, record))  # type: ignore[no-any-return]

    def load(self, id_: bytes) -> Program[Versioned | None]:
        found = yield get(id_)
        return None if found is None else record_of(found)

    def write(
        self, after: Versioned, before: Versioned | None, once: bool
    ) -> Program[WriteRefused | None]:
        if before is None:
            found = yield upsert(after)
            if found is None:
                return None
            if found is not DUPLICATE:
                return WriteRefused(record_of(found))
        elif (yield replace(after, before)).matched_count:
            return None
        return WriteRefused((yield from self.load(after.row.id)))

    def update(self, write: OwnerWrite) -> Program[WriteRefused | None]:
        if (yield update(write)).matched_count:
            return None
        return WriteRefused((yield from self.load(write.id)))

    # -- batches ------------------------------------------------------------------------------------

    def perform_many(self, asks: Sequence[Request]) -> Program[list[Any]]:
        together = self._perform_many(asks)
        return self._in_time(together) if self.clock.due(HELLO) else together

    def _perform_many(self, asks: Sequence[Request]) -> Program[list[Any]]:
        """New claims are one bulk, owners' requests another. What these do not settle goes one by one."""
        answers: list[Any] = [ASKED] * len(asks)
        yield from self._claim_many(asks, answers, _distinct(asks, "claim"))
        yield from self._own_many(asks, answers, _distinct(asks, *OWNERS))
        for place, ask in enumerate(asks):
            if answers[place] is ASKED:
                answers[place] = yield from _attempt(super().perform(ask))
        return answers

    def _claim_many(
        self, asks: Sequence[Any], answers: list[Any], places: list[int]
    ) -> Program[None]:
        decided: dict[int, tuple[Any, Versioned]] = {}
        writes: list[Write] = []
        for place in places:
            try:
                answer, after = self.decide(asks[place], None)
                assert after is not None, "a claim of a new key is always won"
                writes.append(insert_of(after))
            except Exception as error:
                answers[place] = error
            else:
                decided[place] = answer, after
        reply = yield from _bulk(answers, list(decided), writes)
        if reply is None:
            return
        # By id, not by index: emulators count the index differently.
        new = {each["_id"] for each in reply["upserted"]}
        there = [place for place, (_, one) in decided.items() if one.row.id.hex() not in new]
        for place in decided.keys() - there:
            answers[place], after = decided[place]
            self.wrote(after)
        if there:
            yield from self._settle_many(asks, answers, there)

    def _settle_many(
        self, asks: Sequence[Any], answers: list[Any], places: list[int]
    ) -> Program[None]:
        """The claims of keys that have a record: most of them need no write."""
        try:
            found = yield find({"_id": {"$in": [asks[place].id.hex() for place in places]}})
        except Exception as error:
            for place, each in zip(places, error_for_each(error, len(places)), strict=True):
                answers[place] = each
            return
        documents = {each["_id"]: each for each in found}
        for place in places:
            document = documents.get(asks[place].id.hex())
            if document is not None:
                answers[place] = yield from _attempt(self._settle_found(asks[place], document))

    def _settle_found(self, ask: Any, document: dict[str, Any]) -> Program[Any]:
        return (yield from self.settle(ask, record_of(document)))

    def _own_many(
        self, asks: Sequence[Any], answers: list[Any], places: list[int]
    ) -> Program[None]:
        writes: dict[int, Write] = {}
        for place in places:
            try:
                writes[place] = change_of(self.owner_write(asks[place]))
            except Exception as error:
                answers[place] = error
        reply = yield from _bulk(answers, list(writes), list(writes.values()))
        # The server counts all of them together. If one did not match, each is asked for its answer:
        # for the others that is a repeat, which changes nothing.
        if reply is not None and reply["nMatched"] == len(writes):
            for place in writes:
                answers[place] = Ack.OK
                self.updated(asks[place])


def _distinct(asks: Sequence[Any], *ops: str) -> list[int]:
    """The places of these requests, one per key: two writes of a document in one bulk have no order."""
    first: dict[bytes, int] = {}
    for place, ask in enumerate(asks):
        if ask.op in ops and not getattr(ask, "alone", False):
            first.setdefault(ask.id, place)
    return list(first.values())


def _bulk(answers: list[Any], places: list[int], writes: list[Write]) -> Program[Any]:
    """Its result; None if it has none: after an outage its requests have their errors."""
    if len(writes) < 2:
        return None
    try:
        return (yield bulk(writes))
    except StoreUnavailableError as error:
        for place, each in zip(places, error_for_each(error, len(places)), strict=True):
            answers[place] = each
    except Exception:
        return None  # a value in one of them is refused: each goes alone, and gets its own answer
    return None


def _attempt(program: Program[Any]) -> Program[Any]:
    try:
        return (yield from program)
    except Exception as error:
        return error
