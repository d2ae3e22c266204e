"""The commands and events of the consumer flow, and the state of one run.

All of it is plain data, so that both runtimes perform the same commands and the simulation can stop
before or after any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ... import events as ev
from ..._values.clocks import WorkerClock
from ..._values.keys import new_owner
from ..call import Call
from ..commands import Detach, Invoke
from .message import Message, Received

__all__ = [
    "Acknowledge",
    "CollectEvents",
    "ConsumerState",
    "Extend",
    "FetchFailed",
    "FetchMessages",
    "GiveBack",
    "HandlerEnded",
    "MessagesFetched",
    "ReadParkedLanes",
    "ReleasePartitions",
    "Report",
    "Revoked",
    "Start",
]


# --- commands --------------------------------------------------------------------------------


class FetchMessages(msgspec.Struct, gc=False):
    """Start fetching at most this many messages; do not wait for them."""

    most: int


class Start(msgspec.Struct):
    """Start these jobs; do not wait for their ends."""

    jobs: list[tuple[int, Invoke | Detach]]


class CollectEvents(msgspec.Struct, gc=False):
    """Wait until something has happened, stop is called, or `seconds` have passed.

    Reply: what happened: `MessagesFetched`, `FetchFailed`, `HandlerEnded` and `Revoked`, in any number.
    """

    seconds: float


class Acknowledge(msgspec.Struct, gc=False):
    receipts: list[Any]


class GiveBack(msgspec.Struct, gc=False):
    receipts: list[Any]
    seconds: float


class Extend(msgspec.Struct, gc=False):
    receipts: list[Any]


class ReleasePartitions(msgspec.Struct, gc=False):
    """The last message of these revoked partitions has ended."""

    partitions: frozenset[str]


class ReadParkedLanes(msgspec.Struct, gc=False):
    """Reply: the ordering keys that wait for an operator."""


# --- what may have happened ------------------------------------------------------------------


class MessagesFetched(msgspec.Struct, gc=False):
    messages: Sequence[Received]
    joined: bool = True
    """False: the broker has not said yet which messages are ours, so none does not mean none."""


class FetchFailed(msgspec.Struct):
    error: BaseException


class HandlerEnded(msgspec.Struct):
    number: int
    reply: Any


class Revoked(msgspec.Struct, gc=False):
    partitions: frozenset[str]


# --- shared state ----------------------------------------------------------------------------


class Report(msgspec.Struct):
    """What a consumer has done so far."""

    received: int = 0
    """Deliveries that were fetched."""
    ran: int = 0
    """Messages whose handler ran to its end here, and which were acknowledged."""
    replayed: int = 0
    """Repeats that were acknowledged without running."""
    retried: int = 0
    """Attempts that failed and are tried again."""
    dead: int = 0
    """Messages that were published to the dead letters."""


def _no_mark(message: Message, call: Call, elsewhere: bool = False) -> Call | None:
    return None


def _no_look(message: Message, error: Exception) -> Callable[[], Any]:
    raise AssertionError("lease mode looks nothing up")


class ConsumerState:
    """One run of a consumer: its settings, and what the caller may read or set."""

    def __init__(
        self,
        *,
        call: Callable[[Message], Call],
        dead_call: Callable[[Message, Exception], Call],
        mark: Callable[[Message, Call, bool], Call | None] = _no_mark,
        look_up: Callable[[Message, Exception], Callable[[], Any]] = _no_look,
        concurrency: int,
        batch: int,
        most_held: int,
        ordered: bool,
        leases: bool,
        ack_wait: Callable[[], float],
        can_delay: bool,
        clock: WorkerClock,
        notify: Callable[[ev.Event], None],
        idle: float | None = None,
    ) -> None:
        self.call = call
        """The call for a message; an exception says why it cannot be handled."""
        self.dead_call = dead_call
        """The call that publishes a message to the dead letters."""
        self.mark = mark
        """Transaction mode: the call whose claim counts a start of this message, if it must count: the
        broker has delivered it before, or it may have delivered it elsewhere since."""
        self.look_up = look_up
        """Transaction mode: what to run to get a message's recorded outcome; without one it raises
        this error."""
        self.concurrency = concurrency
        self.batch = batch
        self.most_held = max(batch, most_held)
        self.ordered = ordered
        self.leases = leases
        """Lease mode: this flow claims and records. Else the handler does, in its transaction."""
        self._ack_wait = ack_wait
        self.can_delay = can_delay
        self.clock = clock
        self.notify = notify
        self.idle = idle
        """End when nothing came for this many seconds and nothing is held; None: run until stopped."""
        self.stopping = False
        self.owner = new_owner()
        self.report = Report()

    @property
    def ack_wait(self) -> float:
        """The source's, as it is now: it may learn it only when its broker answers."""
        return self._ack_wait()
