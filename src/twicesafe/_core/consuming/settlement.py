"""Settling with the broker: acknowledge, give back, extend, and release partitions that were taken away.

Nothing is decided here. The flow's decisions are collected and sent together: while messages are
being handled, an acknowledgement may wait `TOGETHER` seconds for others. An acknowledgement that
the broker does not accept is kept and sent again. A message that could not be given back is
redelivered by the broker.
"""

from __future__ import annotations

from typing import Any, Final

from ...errors import BrokerUnavailableError
from ..commands import Flow
from .intake import Delivery, Intake
from .message import Received
from .outage import Outage
from .state import Acknowledge, ConsumerState, Extend, GiveBack, ReleasePartitions

__all__ = ["Settlement"]

TOGETHER: Final = 0.05
"""Seconds for which an acknowledgement may wait for others, while messages are being handled."""


class Settlement:
    def __init__(self, state: ConsumerState, intake: Intake, outage: Outage) -> None:
        self._state, self._intake, self._outage = state, intake, outage
        self.acks: list[Any] = []
        self.acknowledge_by = 0.0
        self.returns: dict[float, list[Any]] = {}
        """Messages to give back, by the delay."""
        self.revoked: set[frozenset[str]] = set()
        """Partitions that were taken away and are not released yet."""
        self._look_at = 0.0
        """When to look which messages need an extension."""

    @property
    def unsettled(self) -> int:
        """Messages that the flow is done with and the broker is not."""
        return len(self.acks) + sum(map(len, self.returns.values()))

    def acknowledge(self, delivery: Delivery) -> None:
        if not self.acks:
            self.acknowledge_by = self._state.clock() + TOGETHER
        self.acks.append(delivery.received.receipt)

    def give_back(self, messages: list[Received], seconds: float) -> None:
        if messages:
            receipts = [one.receipt for one in messages]
            self.returns.setdefault(round(seconds, 1), []).extend(receipts)

    def send(self) -> Flow[list[frozenset[str]]]:
        """Send what is due. Returns the partitions that were released."""
        if self._outage.lasts and not self._state.stopping:
            return []
        if self.acks and self._are_acks_due():
            acks, self.acks = self.acks, []
            try:
                yield Acknowledge(acks)
            except BrokerUnavailableError as error:
                if not self._state.stopping:
                    self.acks = acks
                self._outage.begins("acknowledge", error)
        returns, self.returns = self.returns, {}
        for seconds, receipts in returns.items():
            try:
                yield GiveBack(receipts, seconds)
            except BrokerUnavailableError as error:
                self._outage.begins("give back", error)  # the broker redelivers them by itself
        return (yield from self._release_partitions()) if self.revoked else []

    def _are_acks_due(self) -> bool:
        busy = self._intake.running or self._intake.can_take(self._state.concurrency)
        many = 2 * len(self.acks) >= self._state.batch
        late = self._state.clock() >= self.acknowledge_by
        return many or late or not busy or self._state.stopping or bool(self.revoked)

    def _release_partitions(self) -> Flow[list[frozenset[str]]]:
        running = {d.received.partition for d in self._intake.held.values() if d.revoked}
        released = [one for one in self.revoked if not one & running]
        for partitions in released:
            self.revoked.discard(partitions)
            try:
                yield ReleasePartitions(partitions)
            except BrokerUnavailableError as error:
                self._outage.begins("release", error)
        return released

    def extend(self) -> Flow[None]:
        """Tell the broker that held messages are still being worked on."""
        state = self._state
        now = state.clock()
        if not self._intake.held or not state.ack_wait or now < self._look_at:
            return  # before the first message the source may not know its ack-wait
        self._look_at = now + state.ack_wait / 6
        due = [d for d in self._intake.held.values() if now - d.extended >= state.ack_wait / 3]
        if not due:
            return
        for delivery in due:
            delivery.overdue |= now - delivery.extended >= state.ack_wait
            delivery.extended = now
        try:
            yield Extend([delivery.received.receipt for delivery in due])
        except BrokerUnavailableError as error:
            self._outage.begins("extend", error)
