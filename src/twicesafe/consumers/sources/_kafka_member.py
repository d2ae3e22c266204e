"""One member of a consumer group: a thread that polls, commits and takes part in rebalances.

confluent-kafka lets one thread at a time use a consumer. While a poll waits, a commit of another thread
waits, too, even if the poll itself waits, in a rebalance, for the work to be committed. So one
thread makes all calls, and the others ask it:

    take       asks for messages; the thread polls for as long as it waits
    settle     asks for a commit and waits for Kafka's answer
    release    lets a revocation end; while it waits, the thread still commits what is asked for

**Back-pressure.** A member must poll, even if no messages are asked for: else Kafka excludes it. After a
second without `take` the thread pauses the partitions, then polls from time to time. The next `take`
resumes them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from ..._core.consuming.message import Message, Received
from ..._core.consuming.prefix import Prefix, Prefixes
from ..._core.consuming.source import Revoke
from ...errors import BrokerUnavailableError
from ._kafka_records import IN_FLUX, meaning_of, message_of, name_of, place_of

__all__ = ["KafkaMember", "Receipt"]

PAUSED_AFTER: Final = 1.0
"""Seconds without a `take` until the partitions are paused."""

BEAT: Final = 0.2
"""Seconds between two polls of paused partitions."""

SHORT: Final = 0.005
"""Seconds of one poll while messages are unsettled: a commit waits for its end."""

LONG: Final = 0.1
"""Seconds of one poll while there is nothing to commit."""

JOINED_WITHIN: Final = 60.0
"""Seconds. A member that has not heard of any partition by then is taken to have none."""

CONFIRMED_WITHIN: Final = 20.0
"""Seconds that `settle` waits for Kafka's answer to a commit."""


class Receipt(msgspec.Struct, gc=False):
    """Where one message is settled, and the message, in case it is given back."""

    prefix: Prefix
    offset: int
    partition: str
    message: Message | None
    """None: it was given back, so this receipt is void."""


class KafkaMember:
    """Its methods may be called by any thread; those with ``_`` run in its own."""

    def __init__(
        self,
        config: Mapping[str, Any],
        topics: Sequence[str],
        longest_wait: float,
        revoke: Revoke | None,
    ) -> None:
        from confluent_kafka import Consumer

        self._consumer: Any = Consumer({**config, "error_cb": self.hear})
        self._longest_wait, self._revoke = longest_wait, revoke
        self._changed = threading.Condition()  # guards what follows
        self._prefixes = Prefixes()
        self._ready: list[Received] = []
        """Fetched or given back, and not taken."""
        self._wanted = 0
        self._leaving: frozenset[str] = frozenset()
        """Being revoked: what is given back comes to their next member."""
        self._released: set[str] = set()
        self._asked = self._answered = 0
        """Commits that were asked for, and those that have an answer."""
        self._refusal: Exception | None = None
        self._failure: BaseException | None = None
        self._death: BaseException | None = None
        """Why the thread has ended by itself."""
        self._closing = self._ended = False
        self._assigned = False
        """The group has told this member once which partitions it has, if any."""
        self._heard: set[str] = set()
        """The partitions of which Kafka has sent a message, or said that there is none."""
        self._at_end = False
        """A partition has ended after what is committed: with markers of transactions, which count as a lag."""
        self._began = time.monotonic()
        self._polled = time.monotonic()
        self._paused: frozenset[str] = frozenset()
        self._thread = threading.Thread(
            target=self._run, args=(topics,), name="twicesafe-kafka", daemon=True
        )
        self._thread.start()

    # -- what others ask for ------------------------------------------------------------------------

    def take(self, most: int, seconds: float) -> list[Received]:
        with self._changed:
            self._wanted = most
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: self._ended or self._death or (most and (self._ready or self._failure)),
                seconds,
            )
            self._wanted = 0
            if self._death is not None:
                raise BrokerUnavailableError(
                    f"the Kafka driver failed: {type(self._death).__name__}: {self._death}; this consumer joins its "
                    "group again",
                    blames="none",
                ) from self._death
            found, self._ready = self._ready[:most], self._ready[most:]
            if not found and self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            return found

    def give_back(self, receipts: Sequence[Receipt]) -> None:
        """Before those that come later in their partition."""
        with self._changed:
            for receipt in receipts:
                message, receipt.message = receipt.message, None  # it is void from now on
                is_ours = receipt.prefix.is_open and receipt.partition not in self._leaving
                if message is not None and is_ours:
                    fresh = Receipt(receipt.prefix, receipt.offset, receipt.partition, message)
                    self._ready.append(Received(message, fresh, receipt.partition))
            self._ready.sort(key=lambda received: (received.partition, received.receipt.offset))
            self._changed.notify_all()

    def settle(self, receipts: Sequence[Receipt]) -> None:
        with self._changed:
            for receipt in receipts:
                if receipt.message is not None:
                    receipt.prefix.settle(receipt.offset)
            if self._ended or not self._prefixes.due():
                return
            self._asked = ticket = self._asked + 1
            self._changed.notify_all()
            if not self._changed.wait_for(
                lambda: self._ended or self._answered >= ticket, CONFIRMED_WITHIN
            ):
                raise BrokerUnavailableError("Kafka did not confirm a commit in time")
            if self._refusal is not None:
                raise self._refusal

    def listen(self, revoke: Revoke | None) -> None:
        """Tell this function what is revoked. None: no run is active, so no revocation waits."""
        with self._changed:
            self._revoke = revoke
            self._changed.notify_all()

    def release(self, partitions: frozenset[str]) -> None:
        with self._changed:
            self._released |= partitions
            self._changed.notify_all()

    def partitions(self) -> frozenset[str]:
        """Those that are ours now."""
        with self._changed:
            return self._prefixes.partitions()

    @property
    def joined(self) -> bool:
        """Whether a `take` without messages means that there are none."""
        if time.monotonic() - self._began > JOINED_WITHIN:
            return True
        with self._changed:
            return self._assigned and self._prefixes.partitions() <= self._heard

    @property
    def is_dead(self) -> bool:
        """Its thread has ended by itself."""
        with self._changed:
            return self._ended and self._death is not None

    def hear(self, error: Any) -> None:
        """Kafka reports a problem. A `take` that gets no messages raises it, once."""
        meaning = meaning_of(error)
        if meaning is not None:
            with self._changed:
                self._failure = meaning
                self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    # -- the thread ---------------------------------------------------------------------------------

    def _run(self, topics: Sequence[str]) -> None:
        try:
            self._consumer.subscribe(
                list(topics),
                on_assign=self._on_assign,
                on_revoke=self._on_revoke,
                on_lost=self._on_lost,
            )
            while not self._closing:
                self._serve()
        except BaseException as error:
            with self._changed:
                self._death = error
                self._changed.notify_all()
        finally:
            try:
                self._consumer.close()  # calls `_on_revoke`, which commits what is due
            finally:
                with self._changed:
                    self._ended = True
                    self._changed.notify_all()

    def _serve(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._is_asked(), BEAT)
            most = self._wanted - len(self._ready)
            seconds = SHORT if self._prefixes.has_unsettled() else LONG
        self._answer()
        if most > 0:
            self._resume()
            if self._poll(1, seconds) and most > 1:
                self._poll(most - 1, 0)  # what is here already; `consume` would wait for all
            if self._at_end:
                self._at_end = False
                self._commit()
        elif self._paused or time.monotonic() - self._polled >= PAUSED_AFTER:
            self._pause()
            self._poll(1, 0)  # at most one message, from a partition that is new
            self._commit()  # what Kafka did not accept while the group changed

    def _is_asked(self) -> bool:
        return self._asked > self._answered or self._wanted > len(self._ready)

    def _poll(self, most: int, seconds: float) -> int:
        from confluent_kafka import KafkaException

        try:
            records = self._consumer.consume(most, seconds)
        except KafkaException as error:
            self.hear(error.args[0])
            records = []
        time.sleep(
            0
        )  # under gevent the driver has let no other greenlet run, and others wait for it
        self._polled = time.monotonic()
        with self._changed:
            for record in records:
                if record.error() is None:
                    self._receive(record)
                elif record.error().name() == "_PARTITION_EOF":
                    name = name_of(record.topic(), record.partition())
                    self._heard.add(name)
                    self._at_end |= self._prefixes.end(name, record.offset())
                else:
                    self.hear(record.error())
            if self._ready:
                self._changed.notify_all()
        return len(records)

    def _receive(self, record: Any) -> None:
        partition = name_of(record.topic(), record.partition())
        self._heard.add(partition)
        prefix = self._prefixes.fetch(partition, record.offset())
        if prefix is not None:
            message = message_of(record)
            receipt = Receipt(prefix, record.offset(), partition, message)
            self._ready.append(Received(message, receipt, partition))

    def _answer(self) -> None:
        """Commit, if it was asked for."""
        with self._changed:
            asked = self._asked
            if asked == self._answered:
                return
        refusal = self._commit()
        with self._changed:
            self._answered, self._refusal = asked, refusal
            self._changed.notify_all()

    def _commit(self) -> Exception | None:
        """Commit what is due; what Kafka does not accept stays due."""
        from confluent_kafka import KafkaException, TopicPartition

        with self._changed:
            due = self._prefixes.due()
        if not due:
            return None
        try:
            replies = self._consumer.commit(
                offsets=[TopicPartition(*place_of(name), offset) for name, _, offset in due],
                asynchronous=False,
            )
        except KafkaException as error:
            refused = dict.fromkeys((name for name, _, _ in due), error.args[0])
        else:
            refused = {name_of(r.topic, r.partition): r.error for r in replies if r.error}
        with self._changed:
            for name, prefix, offset in due:
                if name not in refused:
                    prefix.commit(offset)
        lasting = [reply.name() for reply in refused.values() if reply.name() not in IN_FLUX]
        if lasting:
            return BrokerUnavailableError(f"Kafka did not accept a commit: {lasting[0]}")
        return None

    # -- rebalances: called by a poll, or by the consumer's `close` -----------------------------------

    def _on_assign(self, _: Any, places: Sequence[Any]) -> None:
        with self._changed:
            self._prefixes.assign(_names(places))
            self._assigned = True

    def _on_revoke(self, _: Any, places: Sequence[Any]) -> None:
        names = _names(places)
        if not self._closing:
            with self._changed:
                self._leaving = names
            self._tell(names)
            self._await_release(names)
        self._commit()
        self._give_up(names)

    def _on_lost(self, _: Any, places: Sequence[Any]) -> None:
        names = _names(places)
        self._give_up(names)
        if not self._closing:
            self._tell(names)

    def _tell(self, names: frozenset[str]) -> None:
        """Nothing of these partitions is taken from now on: what was fetched comes to their next member."""
        with self._changed:
            self._released -= names
            self._ready = [received for received in self._ready if received.partition not in names]
            revoke = self._revoke
        if revoke is not None:
            revoke(names)

    def _await_release(self, names: frozenset[str]) -> None:
        until = time.monotonic() + self._longest_wait
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._is_released(names) or self._asked > self._answered,
                    max(0.0, until - time.monotonic()),
                )
                is_over = self._is_released(names)
            self._answer()
            if is_over or time.monotonic() >= until:
                return

    def _is_released(self, names: frozenset[str]) -> bool:
        return self._closing or self._revoke is None or names <= self._released

    def _give_up(self, names: frozenset[str]) -> None:
        # librdkafka keeps the pause of a partition that leaves: it would bring nothing if it came back.
        _switch(self._consumer.resume, self._paused & names)
        with self._changed:
            self._prefixes.revoke(names)
            self._leaving -= names
            self._paused -= names
            self._heard -= names
            self._ready = [received for received in self._ready if received.partition not in names]

    def _pause(self) -> None:
        ours = self.partitions()
        _switch(self._consumer.pause, ours - self._paused)
        self._paused = ours

    def _resume(self) -> None:
        _switch(self._consumer.resume, self._paused)
        self._paused = frozenset()


def _names(places: Iterable[Any]) -> frozenset[str]:
    return frozenset(name_of(place.topic, place.partition) for place in places)


def _switch(switch: Any, names: Iterable[str]) -> None:
    from confluent_kafka import TopicPartition

    places = [TopicPartition(*place_of(name)) for name in names]
    if places:
        switch(places)
