"""The commands that a flow may send to the runtime, besides store requests. Plain data.

A *flow* is one delivery, written as a generator that yields commands and receives replies. The
blocking and the event-loop runtime perform the same commands, so the flow is written only once.
A flow never catches BaseException around a yield: a flow that is dropped stays dropped, as after a
crash.

Commands of plain data are hidden from the garbage collector (``gc=False``), which saves it work.
Those that hold foreign objects are not. An error references its frames, the frames reference the
reply that holds the error, and this would leak a reference cycle.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, Final, NoReturn, Protocol, TypeAlias, TypeVar, final

import msgspec

from .._values.context import ActiveClaim
from ..errors import LeaseLostError
from .call import Call
from .durable.run_requests import RecordStep
from .protocol import Claimed, ClaimRequest, Complete, Request

__all__ = [
    "AsyncPerformer",
    "AwaitFlight",
    "Command",
    "Detach",
    "EndFlight",
    "Flow",
    "Invoke",
    "JoinFlight",
    "Launch",
    "LostBeforeStartError",
    "NotStarted",
    "OnTransaction",
    "PerformMany",
    "Performer",
    "Raised",
    "Reply",
    "Returned",
    "Sleep",
    "StillRunningError",
    "Watch",
    "Within",
]

T = TypeVar("T")


class Invoke(msgspec.Struct):
    """Run the handler under this claim (None: unprotected). Reply: `Returned` or `Raised`."""

    claim: ActiveClaim | None
    run: Callable[[], Any]
    timeout: float | None = None


class Returned(msgspec.Struct):
    value: Any


@final
class Raised(msgspec.Struct):
    error: BaseException

    def throw(self) -> NoReturn:
        """Raise the error, and drop the reference to it: the frames of its traceback hold this
        reply, and both would stay in memory until the garbage collector finds them.
        """
        error, self.error = self.error, _THROWN
        try:
            raise error
        finally:
            del error


_THROWN: Final = RuntimeError("this reply was raised before")


Reply: TypeAlias = Returned | Raised


class NotStarted(msgspec.Struct, gc=False):
    """The reply for a job of a batch that was stopped before the job started."""


class Sleep(msgspec.Struct, gc=False):
    seconds: float
    firm: bool = False
    """A pause between two attempts to record: a cancellation is delayed until it ends."""


class Watch(msgspec.Struct, gc=False):
    """Wait until this key changes: woken within `seconds`, or after `poll`."""

    id: bytes
    seconds: float
    """The longest wait on a store that wakes its waiters."""
    poll: float
    """The pause on a store that does not wake its waiters."""


class JoinFlight(msgspec.Struct):
    """Join the single flight of this call's key. Reply: None = the call leads it
    (`Call.flight`), else the flight to wait for."""

    call: Call


class AwaitFlight(msgspec.Struct):
    """Wait for a flight. Reply: its answer, True = it ended without one, None = time is up.

    `OverflowError` is thrown if `most` callers already wait for it.
    """

    flight: Any
    seconds: float
    most: int
    asks: bool = False
    """Wait only until it is known whether the leader's handler runs; not counted in `most`."""


class EndFlight(msgspec.Struct, gc=False):
    """The flight that this flow leads ended with this recorded answer."""

    answer: Claimed


class Detach(msgspec.Struct):
    """Finish this flow even if the caller times out first; then `StillRunningError` is thrown.

    A thread cannot be stopped, so its claim is kept until the thread ends.
    """

    flow: Generator[Any, Any, Any]
    timeout: float
    claim: ActiveClaim | None


class LostBeforeStartError(LeaseLostError):
    """The handler did not start, because its claim would expire too soon. The claim is released,
    and this is no attempt.
    """


class StillRunningError(TimeoutError):
    """The caller of a `Detach` waits no longer. The handler may still end well."""


class Within(msgspec.Struct, gc=False):
    """Perform this request to its end, but wait for it at most `seconds`.

    Reply: its answer, or None: it continues in the background. (A blocking call cannot do that.)
    """

    request: Any
    seconds: float


class PerformMany(msgspec.Struct, gc=False):
    """Many requests of one kind, or several questions, in one batch. Reply: a list of answers or exceptions."""

    requests: list[Any]


class Launch(msgspec.Struct):
    """Run many handlers, at most `concurrency` at once; return those that finished.

    First sent with `jobs`, then with none to ask for more, until all have ended. Reply: (index,
    reply) pairs, at least one while any job is unfinished, and every job that ended within `linger`
    seconds. `stop`: start no more, cancel what can be cancelled, and return all the rest. A
    `Detach` settles its claim itself: its reply is `Returned` with the answer, or `Raised`.
    """

    jobs: list[tuple[int, Invoke | Detach]]
    concurrency: int
    linger: float
    stop: bool = False


class OnTransaction(msgspec.Struct):
    """Begin, record, commit or roll back a step on the user's connection (`_runtime.step_transaction`).

    An interrupt or a cancellation rolls back.
    """

    transaction: Any
    act: str
    args: tuple[Any, ...] = ()


Command: TypeAlias = (
    Request
    | Invoke
    | Sleep
    | Watch
    | JoinFlight
    | AwaitFlight
    | EndFlight
    | Detach
    | Within
    | PerformMany
    | Launch
    | OnTransaction
)
Flow: TypeAlias = Generator[Any, Any, T]


class Performer(Protocol):
    """Performs every command of a flow. The three usual ones have a method each, which is faster."""

    def perform(self, command: Any, /) -> Any: ...
    def claim(self, ask: ClaimRequest, /) -> Any: ...
    def invoke(self, claim: ActiveClaim, run: Callable[[], Any], /) -> Reply: ...
    def record(self, ask: Complete | RecordStep, /) -> Any: ...


class AsyncPerformer(Protocol):
    """`Performer`, on an event loop."""

    def perform(self, command: Any, /) -> Any: ...
    def claim(self, ask: ClaimRequest, /) -> Awaitable[Any]: ...
    def invoke(self, claim: ActiveClaim, run: Callable[[], Any], /) -> Awaitable[Reply]: ...
    def record(self, ask: Complete | RecordStep, /) -> Awaitable[Any]: ...
