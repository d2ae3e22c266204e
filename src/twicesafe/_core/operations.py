"""Operator and maintenance requests as flows, shared by the blocking and the async classes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

from msgspec.structs import replace

from .._values.cipher import Cipher, arguments_context, record_context, step_context
from .._values.keys import Key
from .._values.own_records import is_own
from .._values.records import AuditEntry, Record, ReencryptReport, Row, State, Stats, SweepReport
from .._values.settings import is_whole
from .._values.steps import Step, StepState
from ..errors import StillInProgressError, StoreUnavailableError, TwicesafeError, UsageError
from .commands import Flow
from .durable.run_requests import FOREVER, LoadRun, RewriteRun, Run, TidyRuns
from .protocol import (
    ALL,
    Ack,
    Browse,
    Discard,
    Fail,
    Forget,
    History,
    Page,
    Read,
    Release,
    Resolve,
    Rewrite,
    Survey,
    Sweep,
)
from .transitions import NEVER_FINISHED

__all__ = [
    "audit",
    "bad_cursor",
    "check_limit",
    "check_operator",
    "operate",
    "operate_run",
    "page_of",
    "park_stuck",
    "read",
    "reencrypt",
    "survey",
    "sweep",
    "tidy_runs",
]

LONGEST: Final = 4000
"""Characters of a name or a reason in the audit trail: what every store keeps."""

BATCH = 500
"""Records examined in one short transaction of a sweep."""

SMALLEST_BATCH = 20


def read(key: Key, steps: bool = False) -> Flow[Record | None]:
    """`steps`: the store can keep steps, so read those of a durable run, too."""
    row = yield Read(key.id)
    if row is None or not steps:
        return None if row is None else row.view()
    run: Run | None = yield LoadRun(key.id)
    found = [] if run is None else sorted(run.steps, key=_when)
    record: Record = replace(row.view(), steps=tuple(step.view() for step in found))
    return record


def _when(step: Step) -> tuple[int, bool, int]:
    """In the order in which they were recorded; what waits is the last of its millisecond."""
    return step.changed_at, step.state is StepState.WAITING, step.position


def operate_run(key: Key, ask: Release | Resolve | Forget) -> Flow[None]:
    """`operate`, on a key that may be of a durable run. An unfinished run is never swept. The completer
    must look at it now, and not when it would have been due; what is forgotten has no steps."""
    is_run = (yield LoadRun(key.id)) is not None
    if is_run and isinstance(ask, Release):
        ask.retention = FOREVER
    yield from operate(key, ask)
    if is_run:
        yield TidyRuns(1, only=key.id)


def tidy_runs() -> Flow[None]:
    """Remove the steps of runs whose records are gone."""
    after = b""
    while True:
        _, after = yield TidyRuns(BATCH, after)
        if not after:
            return


def operate(key: Key, ask: Release | Resolve | Forget | Discard) -> Flow[None]:
    """Release, resolve, forget or discard; the error says why it was refused and what to do instead."""
    check_operator(key, ask.by, ask.why)
    ack: Ack = yield ask
    if ack is Ack.OK:
        return
    if ack is Ack.MISSING:
        raise UsageError("there is no record of this key; check the key and its scope", key=key)
    if ack is Ack.LOCKED:
        raise StillInProgressError(
            "an open transaction holds this key (or, on SQLite, the database), most likely an inbox "
            f"delivery; nothing was changed; {ask.op} the key when that transaction has ended",
            key=key,
            retry_after=0.5,
        )
    if ack is Ack.LOST:
        raise UsageError(
            "the record has changed since it was read (another run has started, or another operator "
            f"has decided); nothing was changed; read it again before you {ask.op} it",
            key=key,
        )
    row = yield Read(key.id)
    state = "unknown" if row is None else row.state.value
    advice = _FORGOTTEN if state == State.FORGOTTEN else _ADVICE[ask.op]
    raise UsageError(f"cannot {ask.op} a {state} record: {advice}", key=key)


def check_operator(key: Key | None, by: object, why: object) -> None:
    """Who acts, and why, as the audit trail keeps it."""
    if not isinstance(by, str) or not by.strip():
        raise UsageError("by= is required: it is kept in the audit trail", key=key)
    for name, text in (("by", by), ("why", why)):
        try:
            text.encode()  # type: ignore[attr-defined]
        except (AttributeError, UnicodeEncodeError):
            raise UsageError(f"{name}= must be text (valid Unicode)", key=key) from None
        if len(text) > LONGEST:  # type: ignore[arg-type]
            raise UsageError(
                f"{name}= has more than {LONGEST:,} characters; nothing was changed; shorten it",
                key=key,
            )


_FORGOTTEN = (
    "it stays until its retention ends, so that no late repeat runs; new work needs a new key"
)

_ADVICE: dict[str, str] = {
    "restart": "it already has an answer; to run the work again, pass force=True",
    "release": "it already has an answer; to run the work again, pass force=True",
    "resolve": "only work without an answer can be resolved; release it with force=True first",
    "forget": "unfinished work cannot be forgotten; wait until it ends, or release it first",
}


def sweep(limit: int | None) -> Flow[SweepReport]:
    """Sweep in batches until every record was examined once, or `limit` records were removed."""
    if limit is not None:
        check_limit(limit)
    removed = examined = 0
    after = ""
    batch = BATCH
    while True:
        # A small remaining limit must not make small batches: live records are examined too.
        most = ALL if limit is None else limit - removed
        try:
            report, after = yield Sweep(batch, after, most)
        except StoreUnavailableError:
            if batch <= SMALLEST_BATCH:
                raise
            batch //= 4  # too much at once for the store: use smaller batches
            continue
        removed += report.removed
        examined += report.examined
        if not after or (limit is not None and removed >= limit):
            return SweepReport(removed=removed, examined=examined, more=bool(after))


def park_stuck(before: int, retention: int) -> Flow[list[Record]]:
    """Park work whose lease ended before that time and that was not redelivered.

    The request uses the owner's token and fence: a worker that took over meanwhile is not affected,
    and the owner, if it is still alive, may still complete.
    """
    parked: list[Record] = []
    after = ""
    while True:
        page: Page = yield Browse(BATCH, (State.IN_PROGRESS,), after=after)
        for row in page.rows:
            if row.lease_until > before:
                continue
            give_up = Fail(row.id, row.owner, row.fence, 0, row.attempt, retention)
            give_up.error, give_up.hold = row.error or NEVER_FINISHED, row.hold
            if (yield give_up) is Ack.OK:
                row.state = State.HELD if row.hold else State.PARKED
                parked.append(row.view())
        after = page.after
        if not after:
            return parked


REENCRYPTED: Final = 50
"""Records that `reencrypt` reads at once: each may have a large result."""


def reencrypt(
    cipher: Cipher | None,
    limit: int | None,
    after: str,
    audited: Callable[[str], Flow[None]],
    steps: bool = False,
) -> Flow[ReencryptReport]:
    """Encrypt recorded answers with the first key of the ring, newest first; `steps`: and the
    payloads of durable runs that no worker has now. `audited("started")` runs before the first
    answer is rewritten.

    Answers that are recorded meanwhile have that key already. Documents of twicesafe itself stay
    readable. An answer that changes meanwhile is left alone, so it may run beside deliveries, and
    again after a crash.
    """
    renew: Callable[[bytes, bytes], bytes | None] | None = getattr(cipher, "reencrypt", None)
    if renew is None:
        raise UsageError(
            "there is nothing to re-encrypt with: the policy needs encryption=KeyRing.load(…)"
        )
    if limit is not None:
        check_limit(limit)
    examined = rewritten = changed = 0
    unreadable: list[str] = []
    while True:
        size = REENCRYPTED if limit is None else min(REENCRYPTED, limit - examined)
        page = yield from page_of(Browse(size, after=after))
        unreadable += [id_[:8] for id_ in page.unreadable if id_[:8] not in unreadable]
        for row in page.rows:
            if is_own(row.scope):
                continue
            payloads = [_answer_of(row)]
            if steps and row.state is not State.FORGOTTEN:
                run: Run | None = yield LoadRun(row.id)
                payloads += [] if run is None else _payloads_of(row.id, run)
            for payload in payloads:
                try:
                    ask = _rewriting(payload, renew)
                except TwicesafeError:
                    unreadable.append(row.id[:4].hex())
                    continue
                if ask is not None:
                    if not rewritten + changed:
                        yield from audited("started")
                    done = (yield ask) is Ack.OK
                    rewritten, changed = rewritten + done, changed + (not done)
        examined, after = examined + len(page.rows), page.after
        if not after or (limit is not None and examined >= limit):
            return ReencryptReport(
                examined=examined,
                rewritten=rewritten,
                changed=changed,
                unreadable=tuple(unreadable),
                after=after,
            )


_Payload: TypeAlias = tuple[bytes, bytes, Callable[[bytes], Rewrite | RewriteRun]]
"""The stored bytes, their context, and the request that stores others."""


def _rewriting(
    payload: _Payload | None, renew: Callable[[bytes, bytes], bytes | None]
) -> Rewrite | RewriteRun | None:
    """The request for a payload that has another key; None if there is nothing to do."""
    if payload is None:
        return None
    before, context, ask = payload
    after = renew(before, context)
    return None if after is None else ask(after)


def _answer_of(row: Row) -> _Payload | None:
    if row.result is None or row.state not in (State.COMPLETED, State.FAILED):
        return None
    return (
        row.result,
        record_context(row.id, row.state),
        partial(Rewrite, row.id, row.state, row.result),
    )


def _payloads_of(id_: bytes, run: Run) -> list[_Payload | None]:
    """The arguments of a run, the results of its steps and its signals. An empty one is not encrypted."""
    found: list[_Payload | None] = [
        (
            step.result,
            step_context(id_, step.name),
            partial(RewriteRun, id_, step.name, step.result),
        )
        for step in run.steps
        if step.result
    ]
    if run.arguments:
        context = arguments_context(id_, run.function)
        found.append((run.arguments, context, partial(RewriteRun, id_, "", run.arguments)))
    return found


def survey() -> Flow[Stats]:
    return (yield Survey())  # type: ignore[no-any-return]


def audit(key: Key) -> Flow[list[AuditEntry]]:
    return (yield History(key.id))  # type: ignore[no-any-return]


def page_of(ask: Browse) -> Flow[Page]:
    try:
        return (yield ask)  # type: ignore[no-any-return]
    except TwicesafeError:
        raise  # a ConfigurationError is a ValueError too
    except (ValueError, OverflowError) as error:
        raise bad_cursor() from error


def bad_cursor() -> UsageError:
    return UsageError("after= is not valid: use the cursor of the last page")


def check_limit(limit: object, name: str = "limit") -> None:
    if not is_whole(limit):
        raise UsageError(f"{name}={limit!r} is not valid: use 1 or more")
