"""A member whose commits are Kafka transactions: what handlers published, and the offsets, together.

    begin   produce what was published for the prefix   add its offsets   commit

Only messages of the contiguous prefix are in a transaction. What was published for a message that is
done early waits in memory, as its offset does. A handler that fails publishes nothing, because nothing
is produced while it runs; so a transaction is short, and one failure aborts no neighbour's work.

**Zombies.** The transaction carries the member's generation in the group, so Kafka refuses the commit
of a member that has lost its partitions. A second producer with the same transactional id fences the
first one, whose consumer then ends with `ConfigurationError`.

**Unknown outcomes.** If the answer to a commit is lost, the producer is replaced. Its first request
makes Kafka end the old transaction, and then the group's offsets tell whether it was committed.

**Lost transactions.** A broker whose partitions have no leader while it starts (Kafka 4.3 on one
node) may report a transaction as committed and never end it in its partitions. The producer's next
transaction ends it with its own: if that is aborted, both are. So after each abort the group's
offsets are compared with those that Kafka has confirmed. What is missing is handled again.

**Starts.** The first message of a partition waits until the group's offset confirms it (`_kafka_offsets`).

**Refusals.** If Kafka refuses one of the published messages (too large, not allowed), the messages are
committed one by one. For the one that is refused alone, its dead letter is published instead.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from ..._core.consuming.message import Message
from ..._core.consuming.prefix import Prefix
from ..._core.consuming.source import Publication, Revoke
from ...errors import BrokerUnavailableError, ConfigurationError, StillInProgressError
from ...outbox.publishers._kafka_wire import record_of
from ...outbox.publishers.kafka import TO_BLAME
from ._kafka_member import KafkaMember, Receipt
from ._kafka_offsets import committed_offsets, skip_what_is_done
from ._kafka_processed import ProcessedIds
from ._kafka_records import IN_FLUX, name_of, place_of

__all__ = ["TransactionalMember"]

ANSWER: Final = 15.0
"""Seconds for one request of a transaction."""

OFFSETS: Final = 4.0
"""Seconds until the request that adds offsets is given up. It is longer, up to `ANSWER`, after each time."""

AGAIN: Final = 0.2
"""Seconds until a failed request of the member's own is tried again."""

BUSY: Final = 0.05
"""Seconds until a delivery is tried again while another one of its id runs."""

_FENCED: Final = frozenset({"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"})

_FORBIDDEN: Final = "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"

Due = list[tuple[str, Prefix, int]]


class TransactionalMember(KafkaMember):
    """Its methods may be called by any thread; those with ``_`` run in its own."""

    def __init__(
        self,
        config: Mapping[str, Any],
        topics: Sequence[str],
        longest_wait: float,
        revoke: Revoke | None,
        producing: Mapping[str, Any],
        processed: ProcessedIds | None,
    ) -> None:
        self._producing = producing
        self._producer: Any = None
        self._in_doubt: Due = []
        """A transaction that may have been committed."""
        self._is_stable = config["isolation.level"] == "read_committed"
        """Kafka waits for open transactions before it tells the group's offsets."""
        self._is_unsure = False
        """A transaction was aborted: an earlier one may have been aborted with it (see above)."""
        self._offsets_within = OFFSETS
        self._processed, self._topics = processed, topics
        self._final: Exception | None = None
        """Why this member can no longer commit."""
        self._kept: dict[int, Publication] = {}
        """By the identity of the delivery: done, and not acknowledged."""
        self._running: set[tuple[str, bytes]] = set()
        """Ids, with their partitions, that are running or kept."""
        self._published: dict[Prefix, dict[int, Publication]] = {}
        """By offset: acknowledged, and not committed."""
        self._unready: dict[str, list[Any]] = {}
        """The first records of partitions that are not ready yet."""
        self._begun: set[str] = set()
        """Partitions whose start is confirmed, and whose log of processed ids is read."""
        super().__init__(config, topics, longest_wait, revoke)

    # -- what others ask for ------------------------------------------------------------------------

    def begin(self, message: Message, identity: bytes) -> bytes | None:
        if self._processed is None:
            return None
        place = _partition(message), identity
        with self._changed:
            found = self._processed.find(*place)
            if found is not None:
                return found
            if place in self._running:
                raise StillInProgressError("another delivery of this id runs", retry_after=BUSY)
            self._running.add(place)
        return None

    def fail(self, message: Message, identity: bytes) -> None:
        with self._changed:
            self._running.discard((_partition(message), identity))

    def keep(self, publication: Publication) -> None:
        with self._changed:
            self._kept[id(publication.message)] = publication

    def settle(self, receipts: Sequence[Receipt]) -> None:
        with self._changed:
            for receipt in receipts:
                message = receipt.message
                kept = None if message is None else self._kept.pop(id(message), None)
                if kept is not None:
                    self._move(receipt, kept)
        super().settle(receipts)
        final = self._final
        if final is not None:
            raise final

    def _move(self, receipt: Receipt, kept: Publication) -> None:
        """It is acknowledged: it goes with its offset, if the partition is still ours."""
        partition = _partition(kept.message)
        if kept.identity is not None:
            self._running.discard((partition, kept.identity))
        if not receipt.prefix.is_open:
            return
        self._published.setdefault(receipt.prefix, {})[receipt.offset] = kept
        if kept.identity is not None and self._processed is not None:
            self._processed.add(partition, kept.identity, kept.fingerprint)

    # -- the thread -----------------------------------------------------------------------------------

    def _run(self, topics: Sequence[str]) -> None:
        """First ends what an earlier process with this transactional id has left open: until then,
        Kafka does not tell the group's offsets."""
        from confluent_kafka import KafkaException

        while self._producer is None and self._final is None and not self._closing:
            try:
                self._connect()
            except KafkaException as error:
                self._report(self._after(error.args[0]))
        super()._run(topics)

    def _report(self, error: Exception | None) -> None:
        """A `take` that gets no messages raises it, once."""
        with self._changed:
            self._failure = error
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._closing, AGAIN)

    @property
    def joined(self) -> bool:
        return super().joined and not self._unready

    # -- the thread: the start of a partition ---------------------------------------------------------

    def _serve(self) -> None:
        self._begin_partitions()
        if self._unready:
            self._answer()
            self._pause()
            self._poll(1, 0)
        else:
            super()._serve()

    def _begin_partitions(self) -> None:
        from confluent_kafka import KafkaException

        for partition, records in list(self._unready.items()):
            try:
                is_done = skip_what_is_done(self._consumer, partition, records[0].offset())
                if self._processed is not None:
                    self._processed.prepare(self._topics)
                    self._processed.load(partition)
            except KafkaException as error:
                why = f"Kafka does not tell where {partition} continues: {error.args[0].name()}"
                self._report(BrokerUnavailableError(why, blames="none"))
                return
            except (BrokerUnavailableError, ConfigurationError) as error:
                self._report(error)
                return
            with self._changed:
                del self._unready[partition]
                self._begun.add(partition)
                for record in () if is_done else records:
                    super()._receive(record)
                self._changed.notify_all()

    def _receive(self, record: Any) -> None:
        partition = name_of(record.topic(), record.partition())
        if partition in self._begun:
            super()._receive(record)
        elif partition in self._prefixes.partitions():
            self._unready.setdefault(partition, []).append(record)

    def _give_up(self, names: frozenset[str]) -> None:
        super()._give_up(names)
        with self._changed:
            self._published = {one: kept for one, kept in self._published.items() if one.is_open}
            self._begun -= names
            for name in names:
                self._unready.pop(name, None)
            if self._processed is not None:
                self._processed.forget(names)

    # -- the thread: transactions -----------------------------------------------------------------------

    def _commit(self) -> Exception | None:
        """Commit what is due, in one transaction; what Kafka does not accept stays due."""
        from confluent_kafka import KafkaException

        alone = False
        while self._final is None:
            due, work = self._next(alone)
            if not due:
                return None
            refused: list[tuple[Publication, Any]] = []
            try:
                if self._connect():
                    continue  # part of it was committed after all
                self._transact(due, work, refused)
            except KafkaException as error:
                problem = self._after(error.args[0])
                if refused and len(work) > 1:
                    alone = True  # Kafka refuses whole batches: only what fails alone is to blame
                elif not self._bury(refused):
                    return problem
            else:
                self._committed(due)
        return self._final

    def _next(self, alone: bool) -> tuple[Due, list[tuple[str, Publication]]]:
        """What to commit, and what to publish with it; `alone`: up to the first publication."""
        with self._changed:
            due = self._prefixes.due()
            work = [
                (name, prefix, offset, one)
                for name, prefix, end in due
                for offset, one in sorted(self._published.get(prefix, {}).items())
                if offset < end
            ]
        if alone and work:
            name, prefix, offset, one = work[0]
            return [(name, prefix, offset + 1)], [(name, one)]
        return due, [(name, one) for name, _, _, one in work]

    def _connect(self) -> bool:
        """A producer that may begin a transaction; True: what is due has changed, because the one
        in doubt had been committed, or because one that Kafka had confirmed was not."""
        if self._producer is None:
            from confluent_kafka import Producer

            producer: Any = Producer(dict(self._producing))
            producer.init_transactions(ANSWER)
            self._producer = producer
        if not self._in_doubt and not self._is_unsure:
            return False
        names = {name for name, _, _ in self._in_doubt} | self.partitions()
        found = committed_offsets(self._consumer, names, ANSWER) if names else {}
        done = [one for one in self._in_doubt if found[one[0]] >= one[2]]
        self._committed(done)
        with self._changed:
            lost = self._prefixes.lost(found) if self._is_stable else {}
        for name, offset in lost.items():
            self._handle_again(name, offset)
        self._in_doubt, self._is_unsure = [], False
        return bool(done or lost)

    def _handle_again(self, partition: str, offset: int) -> None:
        """Kafka has lost a transaction that it had confirmed: this partition continues after the
        last one that it has. Messages that run are not committed.
        """
        from confluent_kafka import TopicPartition

        names = frozenset({partition})
        self._consumer.seek(TopicPartition(*place_of(partition), offset))
        self._give_up(names)
        if not self._closing:
            self._tell(names)
        with self._changed:
            self._prefixes.assign(names)

    def _transact(
        self, due: Due, work: list[tuple[str, Publication]], refused: list[tuple[Publication, Any]]
    ) -> None:
        from confluent_kafka import KafkaException, TopicPartition

        producer = self._producer
        producer.begin_transaction()
        for partition, one in work:
            for message in one.messages:
                self._produce(one, refused, topic=message.topic, **record_of(message))
            if self._processed is not None and one.identity is not None:
                position, fingerprint = one.message.position, one.fingerprint
                entry = self._processed.record(partition, position, one.identity, fingerprint)
                self._produce(None, refused, **entry)
        producer.flush(ANSWER)  # after it, every refusal is reported
        if refused:
            raise KafkaException(refused[0][1])
        offsets = [TopicPartition(*place_of(name), offset) for name, _, offset in due]
        group = self._consumer.consumer_group_metadata()
        self._within(producer.send_offsets_to_transaction, offsets, group, ANSWER)
        self._in_doubt = due
        producer.commit_transaction(ANSWER)
        self._in_doubt = []

    def _within(self, request: Callable[..., None], *given: Any) -> None:
        """Make a request that librdkafka may never end, whatever its time limit, if the group's
        coordinator goes away meanwhile (librdkafka issue 5456). Then the producer is left alone,
        and its successor fences it.

        After a restart of the broker this is the rule, and all partitions of this member wait
        meanwhile. So the first time limit is short, and the next ones are longer, for a broker that
        is slow.
        """
        from confluent_kafka import KafkaError, KafkaException

        ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

        def make() -> None:
            try:
                request(*given)
            except BaseException as error:
                ended.put(error)
            else:
                ended.put(None)

        threading.Thread(target=make, name="twicesafe-kafka-offsets", daemon=True).start()
        try:
            error = ended.get(timeout=self._offsets_within)
        except queue.Empty:
            self._producer = None
            self._offsets_within = min(2 * self._offsets_within, ANSWER)
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None
        if error is not None:
            raise error
        self._offsets_within = OFFSETS

    def _produce(
        self, one: Publication | None, refused: list[tuple[Publication, Any]], **record: Any
    ) -> None:
        from confluent_kafka import KafkaException

        def report(error: Any, _: Any) -> None:
            if error is not None and one is not None and error.name() in TO_BLAME:
                refused.append((one, error))

        try:
            while not self._is_taken(record, report):
                self._producer.poll(0.1)
        except KafkaException as error:
            report(error.args[0], None)
            raise

    def _is_taken(self, record: dict[str, Any], report: Any) -> bool:
        """False: the producer's queue is full."""
        try:
            self._producer.produce(**record, on_delivery=report)
        except BufferError:
            return False
        return True

    def _after(self, error: Any) -> Exception | None:
        """A transaction failed: end it, and say what the caller of `settle` gets."""
        name = error.name()
        if name in _FENCED:
            self._final = ConfigurationError(
                f"another consumer uses the transactional id {self._producing['transactional.id']} "
                "and has replaced this one, which committed nothing more: give each consumer its own "
                "transactional_id="
            )
        elif name == _FORBIDDEN:
            self._final = ConfigurationError(
                f"Kafka refuses the transactional id {self._producing['transactional.id']} ({name}): "
                "allow this user to use it"
            )
        if self._final is not None:
            return self._final
        self._is_unsure = True
        self._abort(error)
        if name in IN_FLUX:
            return None
        self._producer = (
            None  # after a refusal its sequence numbers have a gap: Kafka wants a new one
        )
        return BrokerUnavailableError(f"Kafka did not accept a transaction: {name}", blames="none")

    def _abort(self, error: Any) -> None:
        """End the transaction; if that fails, too, a new producer does it."""
        from confluent_kafka import KafkaException

        producer = self._producer
        if producer is None:
            return
        if error.txn_requires_abort() or not self._in_doubt:
            try:
                producer.abort_transaction(ANSWER)
            except KafkaException:
                pass
            else:
                self._in_doubt = []
                return
        self._producer = None
        producer.purge()

    def _committed(self, due: Due) -> None:
        with self._changed:
            for _, prefix, offset in due:
                prefix.commit(offset)
                kept = self._published.get(prefix, {})
                for done in [one for one in kept if one < offset]:
                    del kept[done]

    def _bury(self, refused: Iterable[tuple[Publication, Any]]) -> bool:
        """Kafka refuses what these have published: their dead letters take its place, then brief ones.

        False: there are none. If a brief dead letter is refused itself, its partition waits.
        """
        found = {id(one): (one, error) for one, error in refused if not one.is_brief}
        with self._changed:
            for one, error in found.values():
                if self._processed is not None and one.identity is not None:
                    self._processed.remove(_partition(one.message), one.identity)
                reason = RuntimeError(f"Kafka refused what was published: {error.name()}")
                one.is_brief = one.identity is None
                one.messages, one.identity = [one.dead(reason, one.is_brief)], None
        return bool(found)


def _partition(message: Message) -> str:
    return message.position.rpartition("/")[0]
