"""The relay's decisions: two flows that share one `RelayState`, and the commands that they yield.

`keep_slots`, here, renews the slots. `relay_publish.publish_pending` fetches rows, passes them to
the publisher in groups, and settles the answers. Neither does any I/O: they yield requests to the
store and the commands below, and both runtimes perform the same ones.

What a crash leaves behind:
    before a publish                     the rows; the next holder of their slots publishes them
    between publishing and settling      the rows; they are published again under the same ids
    while settling                       settled or not; repeating it changes nothing

One relay at a time handles a lane. It leases the lane's slot and publishes at most one group of the
lane's rows at once. A relay whose lease may have expired publishes nothing more (P7); its deadline
counts from the moment when it sent the renewal. A slot is released only after the publish loop has
reported that none of its rows is being published.

A call of the publisher that does not return within `publish_timeout` is an outage: it is given up,
and its messages are sent again. An async call is cancelled. A thread cannot be, so it keeps its place
among the `concurrency` calls. When no place is left, the relay releases its slots until a call
returns. A call that was given up may still send its messages. That breaks no order: it sends the rows
of a lane in their order, as the next call does, so a message arrives for the first time only after
those before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from ... import events
from ..._values.cipher import Cipher
from ..._values.keys import chance, new_owner
from ..._values.policy import Backoff
from ...errors import BrokerUnavailableError, ConfigurationError, StoreError, TwicesafeError
from ..commands import Flow
from ..sample_schedule import SampleSchedule
from .requests import Backlog, Depth, Heartbeat, LeasedSlots, Message

__all__ = [
    "STORE_FAILURES",
    "CheckBroker",
    "Collect",
    "GiveUp",
    "KeeperPause",
    "Listen",
    "Publish",
    "RelayState",
    "keep_slots",
]

STORE_FAILURES: Final = (StoreError, ConfigurationError)
"""What a running relay survives: an outage, and a store that refuses it, perhaps until a grant is given back."""

MARGIN: Final = 0.1
"""Fraction of the lease: a relay stops this much before the lease expires in the store."""

DEAF_POLL: Final = 0.25
"""The longest pause between two fetches if the store cannot wake the relay."""

RENEWAL: Final = 1.0
"""Longest time between two renewals, in seconds; it delays the takeover from a dead relay."""

REST: Final = Backoff(first=0.1, factor=2, most=10, jitter=0.5)
"""Back-off while the store, or the whole broker, does not answer."""


SAMPLES: Final = 10.0
"""Seconds between two counts of the outbox for observers."""


# --- commands --------------------------------------------------------------------------------


class Publish(msgspec.Struct, gc=False):
    """Start publishing these messages, in order; do not wait for the answers."""

    ticket: int
    messages: list[Message]


class CheckBroker(msgspec.Struct, gc=False):
    """Ask the publisher whether the broker is usable now; do not wait for the answer."""

    ticket: int


class GiveUp(msgspec.Struct, gc=False):
    """Cancel this call if it is async; do not wait for its end. `Collect` reports it when it ends."""

    ticket: int


class Collect(msgspec.Struct, gc=False):
    """Wait until a publish or a check has ended, stop is called, or `seconds` have passed.

    Reply: pairs of a ticket and its answers: a list with None or an exception for each message, or
    one exception if the broker accepted none of them. For a check: None or an exception.
    """

    seconds: float


class Listen(msgspec.Struct, gc=False):
    """Sleep until a message is added (stores with ``wake``), stop is called, or time is up."""

    owner: bytes
    seconds: float


class KeeperPause(msgspec.Struct, gc=False):
    """The keeper's pause; stop ends it early, and so do slots to release."""

    seconds: float


# --- shared state ------------------------------------------------------------------------------


class RelayState:
    """One relay's state. Its two flows may run in two threads, so each field has one writer."""

    def __init__(
        self,
        *,
        lease: float,
        batch: int,
        group: int,
        concurrency: int,
        max_attempts: int,
        backoff: Backoff,
        publish_timeout: float,
        wake: bool,
        clock: Callable[[], float],
        notify: Callable[[events.Event], None],
        observed: bool = False,
        checks: bool = False,
        keeps_order: bool = False,
        cipher: Cipher | None = None,
    ) -> None:
        self.owner = new_owner()
        self.lease = lease
        self.batch = batch
        self.group = min(group, batch)
        self.concurrency = concurrency
        self.max_attempts = max_attempts
        self.backoff = backoff
        self.publish_timeout = publish_timeout
        self.longest_pause = 1.0 if wake else DEAF_POLL
        self.wake = wake
        self.clock = clock
        self.notify = notify
        self.samples = SampleSchedule(SAMPLES, clock) if observed else None
        """When to count the outbox for observers; None: there are none."""
        self.checks = checks
        """The publisher has `check`."""
        self.keeps_order = keeps_order
        """The publisher accepts nothing of a key after a failure: many of its rows may go at once."""
        self.cipher = cipher
        """Decrypts bodies; None: they are published as they are."""
        self.stopping = False
        """Set by `stop`: nothing new is started."""
        self.until_empty = False
        """End when no message can be published now."""
        # Written by the keeper:
        self.slots: dict[int, int] = {}
        self.deadline = 0.0
        self.doubted: object = None
        """Slots that the store says are not ours; written by the publish loop."""
        self.unwanted: frozenset[int] = frozenset()
        """Slots above our share: released once none of their rows is being published."""
        self.unheld: TwicesafeError | None = None
        """Why the last renewal failed."""
        # Written by the publish loop:
        self.drained = (self.unwanted, self.unwanted)
        """The unwanted slots that were looked at, and those of them that are idle."""
        self.calls: dict[int, tuple[float, int]] = {}
        """Calls of the publisher that have not ended, given up or not: when each began, and its messages."""
        self.publishing_ended = False
        """The publish loop has ended."""
        self.outage: TwicesafeError | None = None
        """Why nothing could be published: the broker or the store did not answer."""
        self.not_now: BrokerUnavailableError | None = None
        """Why a lane backs off although its message is not to blame: its stream does not exist."""
        self.published = 0

    def usable(self) -> dict[int, int]:
        """The slots that this relay may publish from, by its own clock."""
        slots, unwanted = self.slots, self.unwanted
        if self.clock() >= self.deadline or slots is self.doubted:
            return {}
        if not unwanted:
            return slots
        return {slot: fence for slot, fence in slots.items() if slot not in unwanted}

    def is_full(self) -> bool:
        """True while no call can be started."""
        return len(self.calls) >= self.concurrency

    def is_stuck(self) -> bool:
        """No call can be started, and each has had time to end after it was given up."""
        limit = self.clock() - self.publish_timeout - self.lease
        return self.is_full() and all(began <= limit for began, _ in list(self.calls.values()))


# --- the keeper --------------------------------------------------------------------------------


def keep_slots(state: RelayState) -> Flow[None]:
    """Renew our slots in time, take free ones, release those above our share; leave at the end."""
    failures = 0
    while not state.publishing_ended:
        if state.is_stuck():
            yield from _leave_while_stuck(state)
            continue
        sent = state.clock()
        said_of, drained = state.drained
        give = drained if said_of is state.unwanted else frozenset()
        try:
            held: LeasedSlots = yield Heartbeat(state.owner, round(state.lease * 1000), give)
        except STORE_FAILURES as error:
            failures += 1
            state.unheld = error
            state.notify(events.StoreFailed(None, "outbox_heartbeat", str(error)))
            yield KeeperPause(
                min(state.lease / 6, REST.delay(failures, chance(state.owner, failures)))
            )
            continue
        failures, state.unheld = 0, None
        state.slots = held.slots
        state.deadline = sent + state.lease * (1 - MARGIN)
        unwanted = frozenset(sorted(held.slots)[held.share :])
        if unwanted != state.unwanted:  # keep the same object while the set is unchanged
            state.unwanted = unwanted
        if state.samples is not None and state.samples.is_due():
            yield from _sample(state, state.samples)
        yield KeeperPause(min(state.lease / 3, RENEWAL))
    yield from _leave(state)


def _leave_while_stuck(state: RelayState) -> Flow[None]:
    """The publisher hangs: let other relays continue, until one of its calls returns."""
    state.slots, state.deadline = {}, 0.0
    messages = sum(count for _, count in list(state.calls.values()))
    said = f"no call of the publisher returned within {state.publish_timeout:g} s; the relay waits for one"
    state.notify(events.BrokerFailed(messages, said, 0.0))
    yield from _leave(state)
    while state.is_stuck() and not state.publishing_ended:
        yield KeeperPause(min(state.lease / 3, RENEWAL))


def _leave(state: RelayState) -> Flow[None]:
    try:
        yield Heartbeat(state.owner, 0, leave=True)
    except STORE_FAILURES as error:
        # The leases expire by themselves.
        state.notify(events.StoreFailed(None, "outbox_heartbeat", str(error)))


def _sample(state: RelayState, schedule: SampleSchedule) -> Flow[None]:
    """Count the outbox for observers. A count that fails is left out: the next heartbeat says why."""
    with schedule.measured():
        try:
            depth: Depth = yield Backlog()
        except STORE_FAILURES:
            return
    state.notify(
        events.OutboxSampled(
            depth.pending,
            depth.oldest_age,
            depth.parked,
            depth.parked_lanes,
            depth.resting_lanes,
            depth.relays,
        )
    )
