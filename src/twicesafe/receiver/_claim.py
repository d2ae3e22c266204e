"""Manual claims: for work that does not fit into one function.

    with receiver.claim("tx-123") as claim:
        if claim.is_new:
            claim.complete(charge(order))
    return claim.result

Leaving the block with an exception fails the attempt. Leaving it without `complete` releases the
claim. A duplicate sees ``is_new`` false and ``result`` set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from .. import _forking
from .._core.call import Call
from .._core.claim_ends import give_back, hold
from .._core.commands import Flow, Raised, Returned
from .._core.delivery import admit_fast, admit_fast_async
from .._core.driving import drive, drive_async
from .._core.duplicates import outcome_of
from .._core.handler_kind import refuse_coroutine
from .._core.protocol import Claimed
from .._core.settling import settle, settle_fast, settle_fast_async
from .._values.context import ActiveClaim, active
from ..errors import LeaseLostError, UsageError

if TYPE_CHECKING:
    from contextvars import Token

    from .._runtime.blocking import BlockingFlowRun
    from .._runtime.event_loop import EventLoopFlowRun
    from .._values.keys import Key
    from .._values.outcomes import Outcome
    from .._values.records import Cause

__all__ = ["AsyncClaim", "Claim"]

T = TypeVar("T")


class _Claim(Generic[T]):
    """What `Claim` and `AsyncClaim` share."""

    def __init__(
        self,
        receiver: Any,
        key: Key,
        fingerprint: bytes | None,
        names: Callable[[], Sequence[str]] | None,
        returns: Any,
    ) -> None:
        self._receiver = receiver
        self._call = Call(
            key,
            _nothing,
            receiver._resolved,
            returns,
            fingerprint,
            names,
            receiver._runtime.clock,
            receiver._notify,
            receiver._observed,
        )
        self._call.tracer = receiver._tracer
        self._held: ActiveClaim | None = None
        self._unsure = False
        """The store was asked to end this claim and did not confirm it."""
        self._done = self._completed_here = False
        self._left = False
        self._result: Any = None
        self._attempt = self._fence = 0
        self._token: Token[ActiveClaim | None] | None = None
        self._flow_run: Any = None

    key = property(lambda self: self._call.key, doc="The full key, with its scope.")
    attempt: int = property(  # type: ignore[assignment]
        lambda self: self._attempt,
        doc="The attempt of this block; for a duplicate, the recorded one.",
    )
    fence: int = property(  # type: ignore[assignment]
        lambda self: self._fence, doc="Larger than that of every earlier claim of this key."
    )

    def __repr__(self) -> str:
        if self._fence == 0:
            return f"<{type(self).__name__} of {self.key.short}, not entered>"
        if self._held is None:
            how = "duplicate"
        elif self._completed_here:
            how = "completed"
        elif self._done or self._left:
            how = "ended"
        else:
            how = "lost" if self.lost else "new"
        where = f"attempt={self._attempt}, fence={self._fence}"
        return f"<{type(self).__name__} of {self.key.short}, {how}, {where}>"

    @property
    def is_new(self) -> bool:
        """True: this block must do the work. False: it is already done, see `result`."""
        if self._fence == 0:
            raise self._not_entered()
        return self._held is not None

    @property
    def cause(self) -> Cause | None:
        """Why the work is started again; None on the first attempt."""
        return None if self._held is None else self._held.cause

    @property
    def lost(self) -> bool:
        """True: stop, because another worker may be running this key now or soon."""
        return self._held is not None and not self._completed_here and self._held.lost

    @property
    def result(self) -> T:
        """The recorded answer: an earlier one, or the one that `complete` just recorded."""
        if self._fence == 0:
            raise self._not_entered()
        if self._held is not None and not self._completed_here:
            raise UsageError("no result yet: call complete(value) first", key=self.key)
        return self._result  # type: ignore[no-any-return]

    def _not_entered(self) -> UsageError:
        return UsageError(
            "the store was not asked yet: enter the claim first, by `with receiver.claim(…) as claim` "
            "(`async with` of an AsyncReceiver)",
            key=self.key,
        )

    def _begin_again(self) -> None:
        """The block of this claim has ended, and it begins again."""
        self._left = self._done = self._completed_here = self._unsure = False
        self._held = self._flow_run = None

    def _is_answered(self) -> bool:
        """Whether the answer is recorded and can be read without a claim, as in `process`."""
        outcome = self._receiver._known(self._call)
        if outcome is not None:
            self._answer_with(outcome)
        return outcome is not None

    def _answer_with(self, outcome: Outcome[Any]) -> None:
        self._result, self._attempt, self._fence = outcome.value, outcome.attempt, outcome.fence

    def _admitted(self, admitted: ActiveClaim | Claimed, run: Any) -> None:
        if isinstance(admitted, Claimed):
            self._answer_with(outcome_of(self._call, admitted))
            run.end()  # a duplicate holds nothing and records nothing
            run.deliver()
            return
        self._held = admitted
        self._attempt, self._fence = admitted.attempt, admitted.fence
        run.hold(admitted)
        admitted.outer, admitted.store = active.get(), self._receiver.store
        if admitted.outer is not None:
            admitted.outer._unlink_ended()
        self._token = active.set(admitted)

    def _to_end(self, value: Any = None) -> ActiveClaim:
        """The claim, if this block may end it with this value. Until the store confirms the end, it is unsure."""
        if type(value) is CoroutineType:
            raise refuse_coroutine(value)
        if self._fence == 0:
            raise self._not_entered()
        if self._held is None:
            raise UsageError("this is a duplicate: its answer is already recorded", key=self.key)
        if self._done or (self._left and self._held.settled):
            raise UsageError("this claim has already ended", key=self.key)
        if self._held.pid != _forking.pid:
            raise LeaseLostError(
                "this process was forked after the claim was made; only the parent may end it",
                key=self.key,
            )
        self._unsure = True
        return self._held

    def _releasing(self, retention: int | None = None) -> Flow[None]:
        return give_back(self._call, self._to_end(), retention)

    def _holding(self, why: str) -> Flow[None]:
        return hold(self._call, self._to_end(), why)

    def _completed(self, answer: Any, value: Any) -> None:
        self._done = self._completed_here = True
        self._result = value
        self._flow_run.leave_flight()  # from here on a duplicate is answered, not refused
        if isinstance(answer, Raised):
            answer.throw()

    def _gave_up(self) -> None:
        """The claim has ended before the block: other callers in this process may claim the key."""
        self._done = True
        self._step_out()
        self._flow_run.end()

    @property
    def _is_held_by_caller(self) -> bool:
        """The caller already holds this claim: waiting for it would never end."""
        found, store = active.get(), self._receiver.store
        while found is not None:
            if found.key == self.key and not found.settled and _is_same_store(found.store, store):
                return True
            found = found.outer
        return False

    def _step_out(self) -> None:
        if self._token is not None:
            try:
                active.reset(self._token)
            except ValueError:
                # A task or thread that the block started has its own context. It cannot change the
                # context of the block, which does so itself when it ends.
                return
            self._token = None

    def _leaving(self, error: BaseException | None) -> Flow[Any] | None:
        """The flow that ends the claim, if it has not ended. A second call returns None."""
        if self._token is not None:
            self._step_out()
        was_left, self._left = self._left, True
        if self._held is None or self._done or was_left or self._held.pid != _forking.pid:
            return None
        if self._unsure:
            return None  # the store may have recorded it: let the lease expire
        if error is not None:
            return settle(self._call, self._held, Raised(error))
        return give_back(self._call, self._held)


def _is_same_store(one: Any, other: Any) -> bool:
    """True for the same store, also if it was opened twice."""
    return one is other or (
        one is not None
        and (one.url, one.place) == (other.url, other.place)
        and bool(other.capabilities.shared)
    )


def _nothing() -> None: ...


class Claim(_Claim[T]):
    """A manual claim, made by `Receiver.claim`."""

    _flow_run: BlockingFlowRun | None

    def __enter__(self) -> Self:
        from .._runtime.blocking import BlockingFlowRun

        if self._left:
            self._begin_again()
        runtime = self._receiver._runtime
        if (runtime.recall or runtime.cache) is not None and self._is_answered():
            return self
        run = self._flow_run = BlockingFlowRun(runtime)
        try:
            self._admitted(admit_fast(self._call, run.join(self._call), run), run)
        except BaseException as error:
            run.interrupted(error)
            run.end()
            run.deliver(instead_of=error)
            raise
        return self

    def complete(self, value: T = None) -> None:  # type: ignore[assignment]
        """Record the answer. Raises `LeaseLostError` if another worker took over the claim."""
        mine, run = self._to_end(value), self._flow_run
        assert run is not None
        self._completed(settle_fast(self._call, mine, Returned(value), run), value)
        if run.cancelled is not None:
            run.deliver()

    def release(self) -> None:
        """Release the claim now, because nothing was done. This does not count as an attempt."""
        flow = self._releasing()
        assert self._flow_run is not None
        drive(flow, self._flow_run.perform)
        self._gave_up()

    def hold(self, why: str = "") -> None:
        """Hold the key, because the outcome is unknown: nothing runs until an operator resolves or releases it."""
        flow = self._holding(why)
        assert self._flow_run is not None
        drive(flow, self._flow_run.perform)
        self._gave_up()

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._leave(error)

    def _leave(self, error: BaseException | None = None) -> None:
        """End the claim. With an error, the attempt failed. A second call does nothing."""
        if self._flow_run is None:
            return  # a duplicate that was answered without a claim
        try:
            flow = self._leaving(error)
            if flow is not None:
                drive(flow, self._flow_run.perform)
        finally:
            self._flow_run.end()
        if self._flow_run.cancelled is not None:
            self._flow_run.deliver(instead_of=error)


class AsyncClaim(_Claim[T]):
    """Async version of `Claim`, made by `AsyncReceiver.claim`."""

    _flow_run: EventLoopFlowRun | None

    async def __aenter__(self) -> Self:
        if self._left:
            self._begin_again()
        runtime = self._receiver._runtime
        if (runtime.recall or runtime.cache) is not None and self._is_answered():
            return self
        run = self._flow_run = await runtime.new_run()
        try:
            self._admitted(await admit_fast_async(self._call, run.join(self._call), run), run)
        except BaseException as error:
            await run.interrupted(error)
            run.end()
            run.deliver(instead_of=error)
            raise
        return self

    async def complete(self, value: T = None) -> None:  # type: ignore[assignment]
        """Record the answer. Raises `LeaseLostError` if another worker took over the claim."""
        mine, run = self._to_end(value), self._flow_run
        assert run is not None
        self._completed(await settle_fast_async(self._call, mine, Returned(value), run), value)
        if run.cancelled is not None:
            run.deliver()

    async def release(self) -> None:
        """Release the claim now, because nothing was done. This does not count as an attempt."""
        flow = self._releasing()
        assert self._flow_run is not None
        await drive_async(flow, self._flow_run.perform)
        self._gave_up()

    async def hold(self, why: str = "") -> None:
        """Hold the key, because the outcome is unknown: nothing runs until an operator resolves or releases it."""
        flow = self._holding(why)
        assert self._flow_run is not None
        await drive_async(flow, self._flow_run.perform)
        self._gave_up()

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        await self._leave(error)

    async def _leave(self, error: BaseException | None = None) -> None:
        """End the claim. With an error, the attempt failed. A second call does nothing."""
        if self._flow_run is None:
            return  # a duplicate that was answered without a claim
        try:
            flow = self._leaving(error)
            if flow is not None:
                await drive_async(flow, self._flow_run.perform)
        finally:
            self._flow_run.end()
        if self._flow_run.cancelled is not None:
            self._flow_run.deliver(instead_of=error)
