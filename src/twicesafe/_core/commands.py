"""What a flow may ask of the runtime besides store requests: again data, nothing else.

A *flow* is one exchange, written as a generator that yields commands and receives replies. The
blocking and the event-loop runtime perform the same commands, so the exchange is written once.
A flow never catches BaseException around a yield: a dropped flow stays dropped, as a dead
process would.

Commands of plain data are hidden from the garbage collector (``gc=False``), which saves it work.
Those that hold what others made are not: an error knows the frames that it passed through, these know
the reply that holds the error, and nobody could ever free such a circle.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeAlias, TypeVar

import msgspec

from .._values.context import ActiveClaim
from .protocol import Claimed, Request

__all__ = [
    "AwaitFlight",
    "Command",
    "Detach",
    "EndFlight",
    "Flow",
    "Invoke",
    "JoinFlight",
    "Launch",
    "NotStarted",
    "PerformMany",
    "Raised",
    "Reply",
    "Returned",
    "Sleep",
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


class Raised(msgspec.Struct):
    error: BaseException


Reply: TypeAlias = Returned | Raised


class NotStarted(msgspec.Struct, gc=False):
    """The reply for a job of a batch that was stopped before its turn came."""


class Sleep(msgspec.Struct, gc=False):
    seconds: float
    firm: bool = False
    """A pause between two tries to record: a cancellation does not cut it short, it waits too."""


class Watch(msgspec.Struct, gc=False):
    """Wait until something happened to this key: woken within `seconds`, or after `poll`."""

    id: bytes
    seconds: float
    """The most that a store which wakes its waiters may take."""
    poll: float
    """The pause where there is nobody to wake us."""


class JoinFlight(msgspec.Struct, gc=False):
    """Equal keys of one process meet here. Reply: None = lead, else the flight to ride on."""

    id: bytes
    fingerprint: bytes | None


class AwaitFlight(msgspec.Struct):
    """Wait for a flight. Reply: its landing, True = it ended without one, None = time is over.

    `OverflowError` is thrown if `most` riders are on it already.
    """

    flight: Any
    seconds: float
    most: int
    asks: bool = False
    """Only until it is known whether the leader's handler runs; these are not counted."""


class EndFlight(msgspec.Struct, gc=False):
    """The flight that we lead ended with this recorded answer."""

    answer: Claimed


class Detach(msgspec.Struct):
    """Finish this flow even if the caller's patience ends first; then TimeoutError is thrown.

    A thread cannot be stopped, so its claim is kept until it really ends.
    """

    flow: Generator[Any, Any, Any]
    timeout: float
    claim: ActiveClaim | None


class Within(msgspec.Struct, gc=False):
    """Do this request to its end, but wait for that no longer than `seconds`.

    Reply: its answer, or None: it goes on without us. (A blocking call cannot be left alone.)
    """

    request: Any
    seconds: float


class PerformMany(msgspec.Struct, gc=False):
    """Many requests of one kind in one trip. Reply: a list of answers or exceptions."""

    requests: list[Any]


class Launch(msgspec.Struct):
    """Run many handlers, at most `concurrency` at once; hand over what finished.

    First sent with all `jobs`, then with none to ask for more. Reply: (index, reply) pairs, at
    least one while any job is unfinished, and everything that ended within `linger` seconds.
    `stop`: start no more, cancel what can be cancelled, and hand over all there is. A `Detach`
    settles its claim itself: its reply is `Returned` with the answer, or `Raised`.
    """

    jobs: list[tuple[int, Invoke | Detach]]
    concurrency: int
    linger: float
    stop: bool = False


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
)
Flow: TypeAlias = Generator[Any, Any, T]
