"""RabbitMQ: a queue, quorum or classic, with manual acknowledgement.

    amqp://user:password@host/vhost?queue=orders&prefetch=200

The queue must exist; while it does not, that is an outage. ``prefetch=`` is how many messages the
broker sends ahead and waits for. They come as they are pushed; `fetch` takes what has come.

A message stays ours as long as its channel lives, so there is nothing to extend. When the channel or
the connection ends, the broker redelivers all that was not acknowledged. Its receipts are void: a
delivery tag belongs to one channel, and the next channel counts from 1 again. The broker also ends a
channel that holds a message for longer than its ``consumer_timeout`` (30 minutes; say another value with
``consumer_timeout=``, for `check`). Acknowledgements are not confirmed by the broker: one that is lost with
its connection leads to a redelivery.

The broker cannot delay a message that is given back, and does not count deliveries of classic
queues. A quorum queue puts messages that are returned one by one behind later ones. If a channel
closes, the queue takes all its messages back in their order. So if order matters, the source waits
until no handler runs, then closes the channel. The id is ``message_id``, the key is the header
``twicesafe-key``, the topic is the routing key. RabbitMQ has no position: a message without an id
has no key unless the consumer has ``key=``. Some clients, aio-pika for one, give each message a new
id: then a producer's retry is a new message.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final, NamedTuple, Self

from ..._core.consuming.message import Received
from ..._core.consuming.source import ConsumerSettings, SourceProblem, SourceStatus
from ..._values.drivers import require
from ..._values.settings import expect
from ...errors import BrokerUnavailableError
from ...outbox.publishers._urls import AMQP, server_url
from ._amqp import QueueSettings, message_of, queue_settings
from ._connection import ConnectionSource, named

__all__ = ["RabbitSource"]

# Without a handler, Python would print the driver's errors, which we raise ourselves, to stderr.
logging.getLogger("aiormq").addHandler(logging.NullHandler())

PREFETCH: Final = 200
MOST_PREFETCH: Final = 65_535
"""AMQP has two bytes for it."""

MANY: Final = 10_000

OPTIONS: Final = {
    "queue": "", "prefetch": PREFETCH, "consumer_timeout": 1800.0, "timeout": 5.0,
}  # fmt: skip


class Receipt(NamedTuple):
    channel: Any
    tag: int
    """Counted by the channel, from 1."""


class RabbitSource(ConnectionSource):
    """Async, with aio-pika."""

    broker: ClassVar[str] = "RabbitMQ"
    can_delay = False
    ack_wait = 0.0

    def __init__(
        self,
        url: str,
        *,
        queue: str,
        prefetch: int = PREFETCH,
        consumer_timeout: float = 1800.0,
        timeout: float = 5.0,
    ) -> None:
        super().__init__(timeout)
        self.name, self.most_held, self.dead_url = queue, prefetch, url
        self._url, self._queue, self._consumer_timeout = url, queue, consumer_timeout
        self._channel: Any = None
        """The driver's channel: what came over another one is void."""
        self._come: deque[Any] = deque()
        """Messages that were pushed to us, and not fetched."""
        self._changed = asyncio.Event()
        """A message has come, or the channel is gone."""
        self._held: set[Receipt] = set()
        self._tag = ""
        self._returns_by_closing = False
        """Returning messages one by one would break their order."""
        self._leaving = False
        """The channel closes when no message is held."""

    @classmethod
    def open(cls, url: str) -> Self:
        require("aio_pika")
        theirs, options = server_url(url, OPTIONS, AMQP)
        named(options, "queue")
        prefetch = options["prefetch"]
        expect(
            prefetch <= MOST_PREFETCH, "option prefetch", prefetch, f"the most is {MOST_PREFETCH}"
        )
        return cls(theirs, **options)

    def hold_many(self) -> None:
        """For the commands on dead letters, which must see all messages: `MANY`, unless the URL names a number."""
        if self.most_held == PREFETCH:
            self.most_held = MANY

    # -- connection -------------------------------------------------------------------------------

    def _enter_loop(self) -> None:
        before = self._loop
        super()._enter_loop()
        if self._loop is not before:
            self._changed = asyncio.Event()

    async def _connect(self) -> None:
        import aio_pika

        self._come.clear()
        self._held.clear()
        self._leaving = False
        self._connection = aio_pika.Connection(aio_pika.connection.make_url(self._url))
        await self._connection.connect(timeout=self._timeout)
        channel = await self._connection.channel(publisher_confirms=False)
        await channel.set_qos(prefetch_count=self.most_held)
        await channel.get_queue(self._queue, ensure=True)
        self._channel = await channel.get_underlay_channel()
        self._channel.closing.add_done_callback(lambda _: self._changed.set())
        self._channel.on_consumer_cancel_callbacks.add(self._cancelled)
        begun = await self._channel.basic_consume(self._queue, self._arrived)
        self._tag = begun.consumer_tag

    def _is_open(self) -> bool:
        if self._connection is None or self._connection.is_closed or self._channel.is_closed:
            return False
        return self._tag in self._channel.consumers

    def _lost(self) -> tuple[type[Exception], ...]:
        from aio_pika.exceptions import AMQPError

        return (AMQPError, RuntimeError)

    async def _disconnect(self, connection: Any) -> None:
        await connection.close()

    async def _cancelled(self, _: Any) -> None:
        """By the broker: the queue was deleted, or has moved."""
        self._changed.set()

    # -- fetching ---------------------------------------------------------------------------------

    async def fetch(self, most: int, seconds: float) -> list[Received]:
        async with self._reached("fetch"):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    while not self._come and self._is_open():
                        self._changed.clear()
                        await self._changed.wait()
            if self._leaving:
                return []
            if not self._is_open():
                raise BrokerUnavailableError(
                    "RabbitMQ closed the channel, or stopped sending", blames="none"
                )
            some = [self._come.popleft() for _ in range(min(most, len(self._come)))]
        received = [
            Received(message_of(message), Receipt(message.channel, message.delivery_tag))
            for message in some
        ]
        self._held.update(one.receipt for one in received)
        return received

    async def _arrived(self, message: Any) -> None:
        if message.channel is self._channel:
            self._come.append(message)
            self._changed.set()

    # -- settling ---------------------------------------------------------------------------------

    async def acknowledge(self, receipts: Sequence[Receipt]) -> None:
        await self._settle("acknowledge", "basic_ack", receipts)
        await self._leave_if_done()

    async def give_back(self, receipts: Sequence[Receipt], seconds: float) -> None:
        if not self._returns_by_closing:
            await self._settle("give back", "basic_nack", receipts)
        elif self._held.intersection(receipts):
            self._leaving = True
            self._held.difference_update(receipts)
            await self._leave_if_done()

    async def _leave_if_done(self) -> None:
        if self._leaving and not self._held:
            await self._drop(self._connection)

    async def extend(self, receipts: Sequence[Receipt]) -> None:
        """Not needed: a message is ours as long as its channel lives."""

    async def _settle(self, doing: str, method: str, receipts: Sequence[Receipt]) -> None:
        """A channel that is gone has taken its messages with it: they are redelivered."""
        from aio_pika.exceptions import ChannelInvalidStateError

        held = [receipt for receipt in receipts if receipt in self._held]
        if not held:
            return
        async with self._reached(doing), asyncio.timeout(self._timeout):
            self._held.difference_update(held)
            for receipt in held:
                is_last = receipt is held[-1]  # wait until it is sent: closing drops what is not
                try:
                    await getattr(receipt.channel, method)(receipt.tag, wait=is_last)
                except ChannelInvalidStateError:
                    pass
                except Exception as error:
                    if type(error) is not Exception:
                        raise
                    # aiormq raises this if the connection ended before the frame was sent.
                    raise ConnectionError("the connection was closed") from error

    # -- dead letters and settings ----------------------------------------------------------------

    def scope(self, topic: str) -> tuple[str, ...]:
        return (self.name,)

    def origin(self, topic: str) -> str:
        return self._queue  # by the default exchange: the topic may lead to other queues, too

    place = ""

    def replay_url(self, place: str) -> str:
        return self.dead_url

    def dead_topic(self, topic: str) -> str:
        return f"{self._queue}.dead"

    async def prepare_dead_letters(self) -> None:
        """Declare the queue ``….dead``, if there is none.

        It is a classic queue, because a quorum queue drops what was looked at too often.
        """
        from aio_pika.exceptions import ChannelNotFoundEntity

        name = self.dead_topic("")
        async with self._reached("prepare dead letters") as connection:
            try:
                async with connection.channel() as channel:
                    await channel.declare_queue(name, passive=True)
            except ChannelNotFoundEntity:
                async with connection.channel() as channel:
                    arguments = {"x-queue-type": "classic"}
                    await channel.declare_queue(name, durable=True, arguments=arguments)

    async def status(self) -> SourceStatus:
        """RabbitMQ tells how many messages are ready and how many consumers it pushes to, not whose they are."""
        import aio_pika

        connection = aio_pika.Connection(aio_pika.connection.make_url(self._url))
        async with self._looking(connection):
            await connection.connect(self._timeout)
            async with connection.channel() as channel:
                queue = await channel.declare_queue(self._queue, passive=True)
        found = queue.declaration_result
        return SourceStatus(found.message_count, count=found.consumer_count)

    async def check(self, consumer: ConsumerSettings) -> list[SourceProblem]:
        async with self._reached("check") as connection:
            queue = await queue_settings(connection, self._queue)
        self._returns_by_closing = consumer.ordered and queue.kind in ("quorum", None)
        return list(_problems(consumer, self._queue, queue, self._consumer_timeout))


def _problems(
    consumer: ConsumerSettings, name: str, queue: QueueSettings, consumer_timeout: float
) -> Iterator[SourceProblem]:
    longest = consumer.max_attempts * (consumer.longest_backoff + (consumer.timeout or 0))
    if longest > consumer_timeout:
        yield SourceProblem(
            f"a message may be held for {longest:g} s, with all its attempts and the back-off between "
            f"them; RabbitMQ closes the channel after {consumer_timeout:g} s (consumer_timeout) and "
            "redelivers all that is held",
            "raise consumer_timeout in rabbitmq.conf and in the URL, or use fewer or shorter attempts",
        )
    if queue.kind is None:
        yield SourceProblem(
            f"this user may not see the settings of the queue {name}, so they are not checked",
            "let the user configure this queue, or compare the settings with the documentation yourself",
        )
    if queue.kind == "stream":
        yield SourceProblem(
            f"{name} is a stream: RabbitMQ cannot take a message of a stream back",
            "use a quorum queue",
        )
    if not queue.durable:
        yield SourceProblem(
            f"the queue {name} is not durable: a restart of RabbitMQ loses its messages",
            "declare it durable, best as a quorum queue",
        )
    limit = queue.delivery_limit
    if limit is not None and (limit <= consumer.max_attempts or not queue.dead_letter_exchange):
        after = "sends it to its own dead letters" if queue.dead_letter_exchange else "drops it"
        yield SourceProblem(
            f"the queue {name} counts each return of a message, also when a consumer that held it died "
            f"in another message; after {limit} of them RabbitMQ {after}",
            f"set x-delivery-limit (or a policy) well above {consumer.max_attempts}, and a dead-letter "
            "exchange",
        )
