"""Recording a step: the request, the encoded result, and one fenced write that is repeated until the
store has answered (P10). A worker that lost the run records nothing.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from ..._values.codecs import unreadable
from ..._values.context import ActiveClaim
from ..._values.steps import SIGNAL, StepState
from ...errors import (
    LeaseLostError,
    ResultError,
    StoreError,
    StoreUnavailableError,
    TwicesafeError,
)
from ..commands import Flow, Sleep
from ..encrypting import encrypted_step, readable_step
from ..outcome_recording import pause_after
from ..protocol import Ack
from ..unkept_results import not_encoded, too_large
from .run_requests import RecordStep, Suspend
from .run_state import RunState, StepCall

__all__ = ["ask_of", "ask_while_claimed", "decoded", "encoded", "gone", "record"]


def ask_of(
    state: RunState,
    call: StepCall,
    as_: StepState = StepState.DONE,
    result: bytes | None = None,
    attempt: int = 1,
    position: int = 0,
) -> RecordStep:
    """The request that records this step."""
    claim = state.claim
    return RecordStep(
        claim.key.id,
        claim.owner,
        claim.fence,
        call.name,
        call.kind,
        as_,
        call.fingerprint,
        result,
        attempt,
        position,
        call.undo is not None,
    )


def encoded(state: RunState, call: StepCall, value: Any) -> bytes:
    """The result as it is recorded; `ResultError`: it cannot be."""
    policy = state.policy
    try:
        payload = policy.codec.encode(value, call.declared)
    except ResultError:
        raise
    except Exception as error:
        raise not_encoded(value, error) from error
    if len(payload) > policy.max_result_bytes:
        raise too_large(value, len(payload), policy.max_result_bytes)
    if policy.cipher is None:
        return payload
    return encrypted_step(policy.cipher, state.claim.key.id, call.name, payload)


def record(
    state: RunState, ask: RecordStep, answer: Ack | Exception | None = None
) -> Flow[Exception | None]:
    """Retry until the store has recorded a step (P10). Returns why it was recorded without its result.

    `answer`: the answer or the error of the store, if the caller has already asked it.
    """
    claim, refused = state.claim, None
    ack: Ack | None = None
    while ack is None:
        try:
            first, answer = answer, None
            ack = yield from ask_while_claimed(claim, ask, first)
        except StoreUnavailableError as error:
            raise StoreUnavailableError(
                f"the step {_shown(ask)!r} ran, but the store did not answer while the claim lasted: "
                "whether it was recorded is unknown; the next attempt finds out",
                key=claim.key,
            ) from error
        except StoreError as error:
            if refused is not None or ask.result is None:
                raise error.about(claim.key) from error.__cause__
            refused, ask = error, replace(ask, result=None)
    if ack is Ack.OK:
        return refused
    if ack is Ack.REFUSED:
        raise state.mismatch(_shown(ask), "", ask.kind)
    claim.gone = True
    raise gone(state, ask, ack)


def _shown(ask: RecordStep) -> str:
    return ask.name.removeprefix(SIGNAL)


def ask_while_claimed(
    claim: ActiveClaim, ask: RecordStep | Suspend, answer: Ack | Exception | None = None
) -> Flow[Ack]:
    """Ask the store until it answers, as long as the claim lasts.

    `answer`: the answer or the error of the store, if the caller has already asked it.
    """
    tries = 0
    while True:
        try:
            found, answer = answer, None
            if isinstance(found, Exception):
                raise found
            return (yield ask) if found is None else found
        except StoreUnavailableError:
            pause = pause_after(tries)
            if claim.gone or claim.clock() + pause >= claim.expires:
                raise
            tries += 1
            yield Sleep(pause, firm=True)


def gone(state: RunState, ask: RecordStep, ack: Ack) -> LeaseLostError:
    """This worker no longer owns the run."""
    why = "its record is gone" if ack is Ack.MISSING else "another worker took the run over"
    return LeaseLostError(
        f"the step {_shown(ask)!r} was not recorded: {why}; this worker must stop",
        key=state.claim.key,
    )


def decoded(state: RunState, name: str, result: bytes, declared: Any) -> Any:
    """A recorded result, as a value of this type."""
    try:
        payload = readable_step(state.policy.cipher, state.claim.key.id, name, result)
    except TwicesafeError as error:
        state.held_by = error  # the key may be missing on this node only: do not use up attempts, and do not undo
        raise
    try:
        return state.policy.codec.decode(payload, declared)
    except Exception as error:
        raise unreadable(error) from error
