"""Requests that one statement answers: for each kind, its values, and what an answer row means.

If a claim finds a record, `lifecycle.look` answers from the columns that its statement returned. What one
statement cannot answer is decided under a row lock.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from ..._core import lifecycle
from ..._core.durable.run_requests import RecordStep, StartRun, Submit
from ..._core.protocol import Ack, Claimed, ClaimRequest, Complete, Fail, Renew, Verdict
from ...errors import StoreError
from ..sql.commands import CAUSES, NUMBER_OF_STATE, Query, present_from
from ..sql.step_rows import ID_BYTES, NUMBER_OF_KIND
from ..sql.step_rows import NUMBER_OF_STATE as NUMBER_OF_STEP_STATE

__all__ = [
    "AGAIN",
    "KINDS",
    "RequestKind",
    "answered",
    "claim_values",
    "narrow_id",
    "query",
    "run_values",
    "step_values",
    "wide_id",
]


Identity: TypeAlias = Callable[[bytes], Any]
"""The id of a key, as it is bound in a statement."""


def wide_id(id_: bytes) -> bytes:
    return id_


def narrow_id(id_: bytes) -> str:
    """Of the narrow table, where an id is a `uuid`."""
    return id_[:16].hex()


AGAIN: Final = object()
"""In place of an answer: the race was lost, so run the statement again."""


def answered(ask: ClaimRequest, row: Any) -> Any:
    """The verdict from a row of the claim statement; None: decide under a lock."""
    _, now, won, state, fence, attempt, cause, owner, lease, changed, expires, hold, *rest = row
    if won:
        return Claimed(Verdict.WON, fence, attempt, CAUSES[cause])
    if state is None:
        return AGAIN  # another claim inserted it after we looked
    if 0 < expires <= now:
        return AGAIN  # another claim took it at the same moment
    known = (state, fence, attempt, owner, lease, changed, expires, hold, cause, *rest)
    try:
        return lifecycle.look(present_from(ask.key.id, known), ask, now)
    except StoreError as error:  # a damaged row: only its own request fails
        return error.about(ask.key)


def claim_values(ask: ClaimRequest, identity: Identity) -> tuple[Any, ...]:
    key = ask.key
    return (
        identity(key.id),
        ask.owner,
        ask.lease,
        ask.max_attempts,
        ask.hold,
        ask.fingerprint,
        msgspec.json.encode(key.scope) if key.scope else b"",
        key.value.encode(),
    )


def _complete_values(ask: Complete, identity: Identity) -> tuple[Any, ...]:
    state, error = NUMBER_OF_STATE[ask.state], ask.error.encode()
    return identity(ask.id), ask.owner, ask.fence, ask.retention, ask.result, state, error


def _fail_values(ask: Fail, identity: Identity) -> tuple[Any, ...]:
    end = ask.delay, ask.max_attempts, ask.retention, ask.error.encode(), ask.hold
    return identity(ask.id), ask.owner, ask.fence, *end


def _renew_values(ask: Renew, identity: Identity) -> tuple[Any, ...]:
    return identity(ask.id), ask.owner, ask.fence, ask.lease


def run_values(ask: StartRun, identity: Identity) -> tuple[Any, ...]:
    key = ask.key
    return (
        *claim_values(ask, identity),
        key.id[:ID_BYTES],
        key.id,
        int(ask.completes),
        ask.function.encode(),
        ask.arguments,
    )


def step_values(ask: RecordStep, identity: Identity) -> tuple[Any, ...]:
    return (
        identity(ask.id),
        ask.owner,
        ask.fence,
        ask.id[:ID_BYTES],
        ask.name.encode(),
        NUMBER_OF_KIND[ask.kind],
        NUMBER_OF_STEP_STATE[ask.state],
        ask.attempt,
        ask.position,
        int(ask.undo),
        ask.delay,
        ask.fingerprint,
        ask.result,
    )


def _started(ask: StartRun, row: Any) -> Any:
    """As `answered`. A new run has no steps; those of another are read next."""
    answer = answered(ask, row[:-1])
    if type(answer) is not Claimed or answer.verdict is not Verdict.WON:
        return answer
    if not row[2]:
        return None  # a network retry: decided under a lock, as it is rare
    answer.now, answer.steps = row[1], [] if row[-1] else None
    return answer


def _submitted(ask: Submit, row: Any) -> Any:
    """WON if the run and its row are new; None: decide under a lock."""
    return Claimed(Verdict.WON, row[4]) if row[2] and row[-1] else None


def _acknowledged(_: Any, row: Any) -> Ack | None:
    """Every row that the statement changed is returned; None: decide under a lock."""
    return None if row is None else Ack.OK


class RequestKind(NamedTuple):
    statement: Callable[[Any], tuple[str, str]]
    """Gets the two statements from the programs: for one request, and for many."""
    values: Callable[[Any, Identity], tuple[Any, ...]]
    answer: Callable[[Any, Any], Any]
    after_a_move: Any = None
    """The answer if the row moved while the statement waited for it."""
    first_try: Callable[[Any], str] | None = None
    """A shorter statement with the same values and answers, which a single request tries first."""


KINDS: Final = {
    "claim": RequestKind(
        attrgetter("statements.claim"),
        claim_values,
        answered,
        AGAIN,
        attrgetter("statements.claim_new"),
    ),
    "complete": RequestKind(attrgetter("statements.complete"), _complete_values, _acknowledged),
    "fail": RequestKind(attrgetter("statements.fail"), _fail_values, _acknowledged),
    "renew": RequestKind(attrgetter("statements.renew"), _renew_values, _acknowledged),
    "start_run": RequestKind(attrgetter("runs.statements.start_run"), run_values, _started, AGAIN),
    "submit_run": RequestKind(
        attrgetter("runs.statements.submit_run"), run_values, _submitted, AGAIN
    ),
    "record_step": RequestKind(
        attrgetter("runs.statements.record_step"), step_values, _acknowledged
    ),
}


def query(sql: tuple[str, str], values: list[tuple[Any, ...]]) -> Query:
    if len(values) == 1:
        return Query(sql[0], values[0])
    values = sorted(values, key=itemgetter(0))  # by key, so that two batches never deadlock
    keys, *others = zip(*values, strict=True)
    return Query(sql[1], (list(keys), *map(_column, others)))


def _column(values: tuple[Any, ...]) -> list[Any]:
    """The values of many requests. A value that all of them have is sent once: a driver checks and encodes
    every element of an array. With asyncpg, that is a fifth of a call."""
    first = values[0]
    if first == values[-1] and values.count(first) == len(values):
        return [first]
    return list(values)
