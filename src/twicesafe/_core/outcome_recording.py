"""Recording: retry until the store has recorded how a handler ended; if need be, without the result.

    answered              recorded
    no answer             the same request again (P10), as long as the claim lasts
    refused               the store rejects this payload (too large, a quota, an invalid value): the
                          same request without the payload, at once
    refused even so, or   the payload is not the cause (a permission was revoked, a table renamed): the
    for a setting         whole request again, until the lease ends
    stuck                 small requests of the same claim succeed and this one does not,
                          `FAILURES_ALONE` times in a row: without the payload

The handler has run, so its effect has happened. A record that says *done* without a result is
better than none: without a record the next delivery would run the handler again. A renewal of the
same claim that changes nothing, and is granted, tells "stuck" from an outage. After it, the request
is sent by itself, so that no other request of a batch can be the cause of its failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

from msgspec.structs import replace

from .. import events as ev
from .._values.clocks import WorkerClock
from .._values.context import ActiveClaim
from ..errors import (
    ConfigurationError,
    NotStorableError,
    StoreUnavailableError,
    TwicesafeError,
)
from .call import Call, cause_of
from .commands import Flow, PerformMany, Reply, Returned, Sleep
from .protocol import Ack, Complete, Fail, Renew

A = TypeVar("A", bound=Complete | Fail)

__all__ = [
    "FAILURES_ALONE",
    "OutcomeRecording",
    "pause_after",
    "retry_until_recorded",
    "without_payload",
]

FAILURES_ALONE: Final = 3
"""How often a request must fail by itself, each time right after a renewal that succeeded."""

RETRY_AT_LEAST: Final = 1.0
"""Seconds for which a recording is always retried. By then a lost connection has been replaced."""


class OutcomeRecording:
    """One request that records how a handler ended, and its answer so far."""

    __slots__ = ("alone", "ask", "began", "claim", "refused", "reply", "until", "whole")

    def __init__(
        self,
        claim: ActiveClaim,
        ask: Complete | Fail,
        reply: object,
        began: float,
        until: float | None = None,
    ) -> None:
        self.claim = claim
        self.ask = self.whole = ask
        self.reply = reply
        """The last answer: an `Ack`, or an exception."""
        self.began = began
        self.until = until
        """When to give up; None: when the claim has certainly expired."""
        self.refused: Exception | None = None
        """Why it was sent without its payload."""
        self.alone = 0

    def answer(self, call: Call) -> Ack | None:
        """The store's answer; raises the error that the caller gets instead of a value.

        None: the store did not record the failure, and the caller gets the handler's own error.
        """
        reply = self.reply
        if isinstance(reply, Ack):
            return reply
        assert isinstance(reply, Exception)
        call.notify(ev.StoreFailed(call.key, self.ask.op, cause_of(reply)))
        if isinstance(self.ask, Fail):
            return None
        if isinstance(reply, StoreUnavailableError):
            raise StoreUnavailableError(
                "the handler finished, but the store did not answer while the claim lasted: "
                "whether the result was recorded is unknown; deliver again to find out",
                key=call.key,
            ) from reply
        error = self.refused or reply
        raise error.about(call.key) if isinstance(error, TwicesafeError) else error

    def problem(self, call: Call, reply: Reply) -> NotStorableError | None:
        """Why the record has no result; None if it has one."""
        if self.refused is None or isinstance(self.ask, Fail):
            return None
        why = "never got through to the store, while smaller requests did"
        if not isinstance(self.refused, StoreUnavailableError):
            why = "was refused by the store"
        problem = NotStorableError(
            f"the result {why} ({self.refused})",
            key=call.key,
            value=reply.value if isinstance(reply, Returned) else None,
        )
        problem.__cause__ = self.refused
        return problem

    def _should_drop_payload(self, now: float, then: float) -> bool:
        """Whether to send it without its payload now. `then`: when it could be retried."""
        if not isinstance(self.reply, Exception) or self.refused is not None:
            return False
        if not (self.ask.error or getattr(self.ask, "result", None)):
            return False
        if isinstance(self.reply, ConfigurationError):
            return False  # a permission, a login: the payload is not the cause
        if not isinstance(self.reply, StoreUnavailableError):
            return True
        if self.alone >= FAILURES_ALONE and now - self.began >= RETRY_AT_LEAST:
            return True
        # There is no time for a retry, and it failed by itself just now. Without its payload it may
        # be recorded.
        return self.alone > 0 and not self.claim.gone and not self._can_retry(then)

    def _drop_payload(self) -> None:
        assert isinstance(self.reply, Exception)
        self.refused = self.reply
        self.ask = without_payload(self.ask)

    def _restore_payload(self) -> None:
        """If it is also refused without its payload, the payload is not the cause: send it whole again."""
        if not isinstance(self.reply, StoreUnavailableError):
            self.ask, self.refused = self.whole, None

    def _can_retry(self, then: float) -> bool:
        """True if it is not recorded yet, and its claim will still be valid at that time."""
        until = self.claim.expires if self.until is None else self.until
        return isinstance(self.reply, Exception) and not self.claim.gone and then < until


def retry_until_recorded(recordings: Sequence[OutcomeRecording], clock: WorkerClock) -> Flow[None]:
    """Retry each of them until it is answered or its claim is over."""
    tries = 0
    while True:
        now, pause = clock(), pause_after(tries)
        refused = [one for one in recordings if one._should_drop_payload(now, now + pause)]
        if refused:
            for one in refused:
                one._drop_payload()
            yield from _send(refused)
            continue
        for one in recordings:
            if not isinstance(one.reply, StoreUnavailableError):
                # Recorded; or refused, and then it is retried only as long as the lease lasts.
                one.claim.settled = True
        unanswered = [one for one in recordings if one._can_retry(now + pause)]
        if not unanswered:
            return
        tries += 1
        yield Sleep(pause, firm=True)
        for one in unanswered:
            one._restore_payload()
        now = clock()
        asked = [one for one in unanswered if tries > 1 and now < one.claim.expires]
        late = [one for one in unanswered if one not in asked]  # too late for a renewal
        if late:
            yield from _send(late)
        for one in (yield from _reached(asked)) if asked else ():
            yield from _send_alone(one)


def pause_after(tries: int) -> float:
    """The pause between two tries grows from 20 ms to a second."""
    return 0.02 * 2**tries if tries < 6 else 1.0


def without_payload(ask: A) -> A:
    """The same request without its result, and with a short error text in ASCII."""
    changes: dict[str, object] = {"error": ask.error[:200].encode("ascii", "replace").decode()}
    if isinstance(ask, Complete):
        changes["result"] = None
    return replace(ask, **changes)


def _send(recordings: Sequence[OutcomeRecording]) -> Flow[None]:
    if len(recordings) == 1:
        one = recordings[0]
        try:
            one.reply = yield one.ask
        except Exception as error:
            one.reply = error
        return
    replies = yield PerformMany([one.ask for one in recordings])
    for one, reply in zip(recordings, replies, strict=True):
        one.reply = reply


def _send_alone(one: OutcomeRecording) -> Flow[None]:
    try:
        one.reply = yield replace(one.ask, alone=True)
    except Exception as error:
        one.reply = error
        one.alone += isinstance(error, StoreUnavailableError)


def _reached(recordings: Sequence[OutcomeRecording]) -> Flow[list[OutcomeRecording]]:
    """The recordings whose claims the store can renew. A renewal by a millisecond changes no live lease.

    A claim that the store refuses to renew is lost, or it is recorded and only the answer did not
    come: its payload is not the cause. It is sent again here.
    """
    asks = [Renew(one.ask.id, one.ask.owner, one.ask.fence, 1) for one in recordings]
    if len(asks) == 1:
        try:
            replies = [(yield asks[0])]
        except Exception as error:
            replies = [error]
    else:
        replies = yield PerformMany(asks)
    reached: list[OutcomeRecording] = []
    for one, reply in zip(recordings, replies, strict=True):
        if reply is Ack.OK:
            reached.append(one)
            continue
        one.alone = 0
        if isinstance(reply, Ack):
            yield from _send([one])
    return reached
