"""The relay's brain: two flows that share one `RelayState`, and the commands that they yield.

`keep`, here, renews the slots; `carrying.carry` fetches rows, hands them to the publisher in groups,
and settles what came back. Neither does any I/O: they yield requests to the store and the commands
below, and both runtimes perform the same ones.

What if we die here?
    before a publish     the rows are there; whoever leases their slots next publishes them
    after it, before the settlement   they are published again, under the same ids
    in the settlement    it happened or not; saying it again changes nothing

A lane is in one hand: its slot is leased by one relay, and of its rows at most one group is under
way. A relay whose lease may be over publishes nothing more (P7); its deadline counts from the
moment when the renewal was sent. A slot that is to be given back goes only after the carrier has
said that nothing of it is under way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from .. import events
from .._values.owner_token import chance, new_owner
from .._values.policy import Backoff
from ..errors import BrokerUnavailableError, StoreError, TwicesafeError
from .commands import Flow
from .outbox_requests import Held, Hold, Message

__all__ = ["Check", "Collect", "Listen", "Pause", "Publish", "RelayState", "keep_slots"]

MARGIN: Final = 0.1
"""Of the lease: a relay stops this much before the store lets go."""

DEAF_POLL: Final = 0.25
"""The longest pause between two looks where nobody wakes us."""

RENEWAL: Final = 1.0
"""Seconds between two renewals at most: who takes over from a dead relay comes this much later."""

REST: Final = Backoff(first=0.1, factor=2, most=10, jitter=0.5)
"""While the store, or the broker as a whole, does not answer."""


# --- commands --------------------------------------------------------------------------------


class Publish(msgspec.Struct, gc=False):
    """Start to publish these, in order; do not wait for it."""

    ticket: int
    messages: list[Message]


class Check(msgspec.Struct, gc=False):
    """Ask the publisher whether the broker can be used now; do not wait for it."""

    ticket: int


class Collect(msgspec.Struct, gc=False):
    """Wait until a publish or a check has ended, stop is called, or `seconds` are over.

    Reply: pairs of a ticket and its answers: a list with None or an exception for each message, or
    one exception if the broker as a whole did not take them. Of a check: None or an exception.
    """

    seconds: float


class Listen(msgspec.Struct, gc=False):
    """Sleep until a message was added (stores with ``wake``), somebody says stop, or time is over."""

    bell: bytes
    seconds: float


class Pause(msgspec.Struct, gc=False):
    """The keeper's rest; ended early by stop, or when there are slots to give back."""

    seconds: float


# --- what both flows know ----------------------------------------------------------------------


class RelayState:
    """One relay's state. Its two flows may be in two threads: each field has one writer."""

    def __init__(
        self,
        *,
        lease: float,
        batch: int,
        group: int,
        concurrency: int,
        max_attempts: int,
        backoff: Backoff,
        wake: bool,
        clock: Callable[[], float],
        notify: Callable[[events.Event], None],
        checks: bool = False,
    ) -> None:
        self.owner = new_owner()
        self.lease = lease
        self.batch = batch
        self.group = min(group, batch)
        self.concurrency = concurrency
        self.max_attempts = max_attempts
        self.backoff = backoff
        self.longest_pause = 1.0 if wake else DEAF_POLL
        self.wake = wake
        self.clock = clock
        self.notify = notify
        self.checks = checks
        """The publisher can say whether the broker can be used now."""
        self.stopping = False
        """Set by whoever wants it to end: nothing new is started."""
        self.until_empty = False
        """End when nothing is left that may go now, or nothing can go."""
        # Written by the keeper:
        self.slots: dict[int, int] = {}
        self.deadline = 0.0
        self.doubted: object = None
        """Slots of which the store says that they are not ours: the carrier's word to itself."""
        self.unwanted: frozenset[int] = frozenset()
        """More than our share: to be given back when nothing of them is under way."""
        self.unheld: StoreError | None = None
        """Why the slots were not renewed the last time."""
        # Written by the carrier:
        self.drained = (self.unwanted, self.unwanted)
        """Of which unwanted slots nothing is under way, and of which set of them that was said."""
        self.carried = False
        """The carrier has ended."""
        self.outage: TwicesafeError | None = None
        """Why nothing could go: the broker as a whole, or the store, did not answer."""
        self.not_now: BrokerUnavailableError | None = None
        """Why a lane rests although its message is not to blame: what it needs is not there."""
        self.published = 0

    def usable(self) -> dict[int, int]:
        """The slots that we may publish from, by our own clock."""
        slots, unwanted = self.slots, self.unwanted
        if self.clock() >= self.deadline or slots is self.doubted:
            return {}
        if not unwanted:
            return slots
        return {slot: fence for slot, fence in slots.items() if slot not in unwanted}


# --- the keeper --------------------------------------------------------------------------------


def keep_slots(desk: RelayState) -> Flow[None]:
    """Renew our slots in time, take what is free, give back what is too much; leave in the end."""
    failures = 0
    while not desk.carried:
        sent = desk.clock()
        said_of, drained = desk.drained
        give = drained if said_of is desk.unwanted else frozenset()
        try:
            held: Held = yield Hold(desk.owner, round(desk.lease * 1000), give)
        except StoreError as error:
            failures += 1
            desk.unheld = error
            desk.notify(events.StoreFailed(None, "outbox_hold", str(error)))
            yield Pause(min(desk.lease / 6, REST.delay(failures, chance(desk.owner, failures))))
            continue
        failures, desk.unheld = 0, None
        desk.slots = held.slots
        desk.deadline = sent + desk.lease * (1 - MARGIN)
        unwanted = frozenset(sorted(held.slots)[held.share :])
        if unwanted != desk.unwanted:  # the same object: unwanted all the time
            desk.unwanted = unwanted
        yield Pause(min(desk.lease / 3, RENEWAL))
    try:
        yield Hold(desk.owner, 0, leave=True)
    except StoreError as error:
        desk.notify(events.StoreFailed(None, "outbox_hold", str(error)))  # the leases will end
