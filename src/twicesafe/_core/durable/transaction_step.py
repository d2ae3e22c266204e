"""The flow of a step whose effect and record are committed in one transaction of the user's connection.

    begin      a transaction on the idle connection; only the owner of the run continues
    invoke     ``function(connection, …)`` writes through it
    record     the step, with the run's owner and fence, in the same transaction
    commit     both, or neither

If the function raises, all of it is rolled back; if it had committed before, the run is held.
If the worker dies anywhere before the commit, the database rolls back, and the next worker runs the
step: its effect was never applied. If the answer to the commit is lost, the store says whether the
step is recorded (P10). So no step of this kind is ever marked as started, held or probed.

On SQLite the transaction keeps out all other writers, renewals of the run's own lease too. None of
them can take the run over meanwhile, and the transaction renews the lease as it ends.
"""

from __future__ import annotations

from msgspec.structs import replace

from ... import events as ev
from ..._values.context import MARGIN, ActiveClaim
from ..._values.records import Row
from ..._values.steps import Step, StepState
from ...errors import AtomicityBrokenError, ResultError, StoreError, TwicesafeError, UsageError
from ..commands import Flow, Invoke, OnTransaction, Raised, Reply, Returned
from ..protocol import Ack, Read
from ..unkept_results import because
from .run_requests import LoadRun, RecordStep, Run
from .run_state import RunState, StepCall
from .step_records import ask_of, encoded, gone, record

__all__ = ["in_transaction", "look_up_commits"]


def in_transaction(state: RunState, call: StepCall, attempt: int) -> Flow[Reply]:
    """One try of the step. The reply is its value, after the commit."""
    on, ask, began = call.transaction, ask_of(state, call), state.clock()
    try:
        ack = yield OnTransaction(on, "begin", (ask,))
    except TwicesafeError as error:
        return Raised(error.about(state.claim.key))
    if ack is not Ack.OK:
        yield OnTransaction(on, "rollback")
        return Raised((yield from _refused(state, ask, ack)))
    run = state.traced(call.name, call.run)
    reply: Reply = yield Invoke(state.step_claim(call.name), run, call.options.timeout)
    if isinstance(reply, Raised):
        ended: AtomicityBrokenError | None = yield OnTransaction(on, "give_up", (ask, reply.error))
        if ended is None:
            return reply
        broken = state.held_by = _broken(call.name, ended.message)
        broken.__cause__ = reply.error
        return Raised(broken.about(state.claim.key))
    ask.attempt, ask.position = attempt, state.next_position()
    problem: TwicesafeError
    try:
        ask.result = encoded(state, call, reply.value)
        sent, span = state.clock(), _to_renew(state.claim)
        ack = yield OnTransaction(on, "record", (ask, round(span * 1000)))
    except ResultError as error:
        problem = _not_kept(call.name, error)
    except AtomicityBrokenError as error:
        # Part of the work may be committed, and must not run again by itself.
        problem = state.held_by = _broken(call.name, error.message)
    except StoreError as error:
        problem = error
    else:
        if ack is Ack.OK:
            committed: Reply = yield from _committed(state, call, ask, reply, sent, span)
            if isinstance(committed, Returned):
                state.recorded_step(call.name, call.kind, attempt, began)
            return committed
        problem = yield from _refused(state, ask, ack)
    yield OnTransaction(on, "rollback")
    return Raised(problem.about(state.claim.key))


def _committed(
    state: RunState, call: StepCall, ask: RecordStep, reply: Returned, sent: float, span: float
) -> Flow[Reply]:
    # Noted before the COMMIT is sent: a cancellation ends this flow at its next command.
    state.committing[call.name] = (call, ask, reply.value)
    try:
        yield OnTransaction(call.transaction, "commit")
    except Exception as error:
        yield OnTransaction(call.transaction, "rollback")
        if not (yield from _is_recorded(state, ask)):
            del state.committing[call.name]
            return Raised(error)
        # The error may be one of a hook of the connection.
        state.notify(ev.StoreFailed(state.claim.key, "commit", type(error).__name__))
    if span:
        claim = state.claim
        claim.renewed = sent
        claim.expires = max(claim.expires, sent + span * (1 - MARGIN))
    del state.committing[call.name]
    state.register(call, ask.position, reply.value, ask.result)
    return reply


def look_up_commits(state: RunState) -> Flow[None]:
    """What was committed has to be undone, although its step was cancelled in the COMMIT."""
    for name, (call, ask, value) in list(state.committing.items()):
        if call.undo is not None and (yield from _is_recorded(state, ask)):
            state.register(call, ask.position, value, ask.result)
        del state.committing[name]


def _to_renew(claim: ActiveClaim) -> float:
    """Seconds by which this transaction renews the lease; 0: its last renewal is not overdue."""
    now = claim.clock()
    if now - claim.renewed < claim.lease / 3:
        return 0.0
    return max(0.0, min(claim.lease, claim.max_lease - (now - claim.started)))


def _is_recorded(state: RunState, ask: RecordStep) -> Flow[bool]:
    """Whether the transaction was committed, although its COMMIT raised.

    It may still be ending in the server, with the run's record locked. So this writes to the step, which
    waits for that lock; a step that is recorded refuses it.
    """
    started = replace(ask, state=StepState.STARTED, result=None, undo=False)
    try:
        yield from record(state, started)
    except TwicesafeError as error:
        if state.claim.gone or isinstance(error, StoreError):
            raise
        run: Run | None = yield LoadRun(ask.id)
        found: list[Step] = [] if run is None else run.steps
        return any(s.name == ask.name and s.state is StepState.DONE for s in found)
    return False


def _refused(state: RunState, ask: RecordStep, ack: Ack) -> Flow[TwicesafeError]:
    if ack is Ack.REFUSED:
        return state.mismatch(ask.name, "", ask.kind)
    if ack is Ack.MISSING:
        row: Row | None = yield Read(ask.id)
        if row is not None and row.owner == ask.owner:
            return UsageError(
                "the database of this connection does not have the run, but the receiver's store does; pass "
                f"a connection to the database of the receiver; the step {ask.name!r} was rolled back",
                key=state.claim.key,
            )
    state.claim.gone = True
    return gone(state, ask, ack)


def _not_kept(name: str, problem: ResultError) -> ResultError:
    return because(problem, f"the step {name!r} was rolled back: ")


def _broken(name: str, because: str) -> AtomicityBrokenError:
    return AtomicityBrokenError(
        f"the function of the step {name!r} ended the transaction of the step: it committed, rolled back, ran "
        f"a statement that commits implicitly, or continued after an error ({because}); the step is not "
        "recorded, and part of its work may be committed, so the run is held; look at your data, then "
        "release or resolve the run; let twicesafe commit, and use savepoints in the function"
    )
