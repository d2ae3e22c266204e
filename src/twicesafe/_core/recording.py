"""Recording: an end is sent until the store has it; if the store takes it in no other way, without its payload.

    answered              recorded
    no answer             the same words again (P10), as long as the claim lasts
    refused               the store says no to this payload (too large, a quota, a value that it does not
                          take): at once without the payload
    refused even so       the payload is not to blame (a permission was taken away, a table renamed): the
                          same words again, until the lease ends
    stuck                 small requests of the same claim get through and this one does not, `ALONE`
                          times in a row: without the payload, too

The handler has run, so its effect is there. A record that says *done* without a result is the lesser
evil: without any record the next delivery would run the handler again. What tells "stuck" from an
outage is a renewal of the same claim that changes nothing. Then the end is sent by itself: what fails
alone is its own failure, and no neighbour in the same batch is to blame.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

from msgspec.structs import replace

from .. import events as ev
from .._values.clocks import WorkerClock
from .._values.context import ActiveClaim
from ..errors import NotStorableError, StoreUnavailableError, TwicesafeError
from .call import Call, cause_of
from .commands import Flow, PerformMany, Reply, Returned, Sleep
from .protocol import Ack, Complete, Fail, Renew

A = TypeVar("A", bound=Complete | Fail)

__all__ = ["ALONE", "Recording", "pause_after", "see_through", "without_payload"]

ALONE: Final = 3
"""So many times an end may fail by itself, each time right after a renewal that got through."""

AT_LEAST: Final = 1.0
"""Seconds for which it is tried all the same: a connection that was cut has been made anew by then."""


class Recording:
    """One end on its way into the store."""

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
        """What came of it so far: an `Ack`, or an exception."""
        self.began = began
        self.until = until
        """When to give up; None: when the claim is surely over."""
        self.refused: Exception | None = None
        """Why it was sent without its payload."""
        self.alone = 0

    def answer(self, call: Call) -> Ack | None:
        """What the store said of it; or the error that the caller gets instead of a value.

        None: the store did not record the failure. Then the caller's own error comes first.
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
        """The error for the first caller if the record has no result; None if it has one."""
        if self.refused is None or isinstance(self.ask, Fail):
            return None
        why = "never got through to the store, while smaller requests did"
        if not isinstance(self.refused, StoreUnavailableError):
            why = "was refused by the store"
        problem = NotStorableError(
            f"the work is done and recorded, but its result {why} ({self.refused}); duplicates get "
            "ResultUnavailableError",
            key=call.key,
            value=reply.value if isinstance(reply, Returned) else None,
        )
        problem.__cause__ = self.refused
        return problem

    def _is_to_be_lightened(self, now: float, then: float) -> bool:
        """Is it time to send it without its payload? `then`: when it could be tried again."""
        if not isinstance(self.reply, Exception) or self.refused is not None:
            return False
        if not (self.ask.error or getattr(self.ask, "result", None)):
            return False
        if not isinstance(self.reply, StoreUnavailableError):
            return True
        if self.alone >= ALONE and now - self.began >= AT_LEAST:
            return True
        # No time is left. It failed alone a moment ago: without its payload it may still be recorded.
        return self.alone > 0 and not self.claim.gone and not self._waits(then)

    def _lighten(self) -> None:
        assert isinstance(self.reply, Exception)
        self.refused = self.reply
        self.ask = without_payload(self.ask)

    def _restore(self) -> None:
        """Its payload was not to blame if it is refused without it, too: it is sent whole again."""
        if not isinstance(self.reply, StoreUnavailableError):
            self.ask, self.refused = self.whole, None

    def _waits(self, then: float) -> bool:
        """Is it not recorded, and is its claim still there at that time?"""
        until = self.claim.expires if self.until is None else self.until
        return isinstance(self.reply, Exception) and not self.claim.gone and then < until


def see_through(recordings: Sequence[Recording], clock: WorkerClock) -> Flow[None]:
    """Until each of them is answered, or its claim is over."""
    tries = 0
    while True:
        now, pause = clock(), pause_after(tries)
        refused = [one for one in recordings if one._is_to_be_lightened(now, now + pause)]
        if refused:
            for one in refused:
                one._lighten()
            yield from _send(refused)
            continue
        for one in recordings:
            if not isinstance(one.reply, StoreUnavailableError):
                one.claim.settled = (
                    True  # recorded; or refused, and then the lease is all the time it has
                )
        unanswered = [one for one in recordings if one._waits(now + pause)]
        if not unanswered:
            return
        tries += 1
        yield Sleep(pause, firm=True)
        for one in unanswered:
            one._restore()
        now = clock()
        asked = [one for one in unanswered if tries > 1 and now < one.claim.expires]
        told = [one for one in unanswered if one not in asked]  # too late to renew anything
        if told:
            yield from _send(told)
        for one in (yield from _reached(asked)) if asked else ():
            yield from _send_alone(one)


def pause_after(tries: int) -> float:
    """Pauses between two tries to record grow from 20 ms to a second."""
    return 0.02 * 2**tries if tries < 6 else 1.0


def without_payload(ask: A) -> A:
    """The same end, without what only its sender knows the size and the form of."""
    changes: dict[str, object] = {"error": ask.error[:200].encode("ascii", "replace").decode()}
    if isinstance(ask, Complete):
        changes["result"] = None
    return replace(ask, **changes)


def _send(recordings: Sequence[Recording]) -> Flow[None]:
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


def _send_alone(one: Recording) -> Flow[None]:
    try:
        one.reply = yield replace(one.ask, alone=True)
    except Exception as error:
        one.reply = error
        one.alone += isinstance(error, StoreUnavailableError)


def _reached(recordings: Sequence[Recording]) -> Flow[list[Recording]]:
    """Those whose claims the store answers for. A renewal by a millisecond changes no live lease."""
    asks = [Renew(one.ask.id, one.ask.owner, one.ask.fence, 1) for one in recordings]
    if len(asks) == 1:
        try:
            replies = [(yield asks[0])]
        except Exception as error:
            replies = [error]
    else:
        replies = yield PerformMany(asks)
    reached: list[Recording] = []
    for one, reply in zip(recordings, replies, strict=True):
        if isinstance(reply, Ack):
            reached.append(one)
        else:
            one.alone = 0  # an outage after all
    return reached
