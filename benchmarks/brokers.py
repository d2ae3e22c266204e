"""Brokers for the benchmark of consumers: fill a queue, and read it by a bare loop on the driver.

A loop takes up to 100 messages at a time (SQS gives 10), calls ``work(id)`` for each, and acknowledges
them together where the driver can. That is what most people write first.
"""

from __future__ import annotations

import abc
import asyncio
import itertools
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from tests.servers import launch

__all__ = ["BROKERS", "Broker"]

BODY = b"x" * 200
BATCH = 100

Work = Callable[[str], object]

_numbers = itertools.count(1)


class Broker(abc.ABC):
    """A server, and a new queue for each lap."""

    shown: ClassVar[str]
    engine: ClassVar[str]

    def __init__(self) -> None:
        self.server: Any = launch(self.engine)
        self.queue = ""

    def fill(self, count: int) -> None:
        """A new queue with so many messages."""
        self.queue = f"bench{next(_numbers)}"
        self._fill([f"{self.queue}-{n}" for n in range(count)])

    @abc.abstractmethod
    def _fill(self, ids: list[str]) -> None: ...

    @property
    @abc.abstractmethod
    def url(self) -> str:
        """For `Consumer.open`."""

    @abc.abstractmethod
    def loop(self, work: Work, count: int) -> None:
        """Read so many messages by the driver alone."""


class Kafka(Broker):
    shown, engine = "Kafka", "kafka"

    @property
    def url(self) -> str:
        return f"kafka://{self.server.bootstrap}?topics={self.queue}&group={self.queue}"

    def _fill(self, ids: list[str]) -> None:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.server.bootstrap, "linger.ms": 20})
        for id_ in ids:
            producer.produce(self.queue, BODY, key=id_, headers={"id": id_})
        assert producer.flush(60) == 0

    def loop(self, work: Work, count: int) -> None:
        from confluent_kafka import Consumer

        settings = {"bootstrap.servers": self.server.bootstrap, "group.id": self.queue}
        consumer = Consumer(
            {**settings, "auto.offset.reset": "earliest", "enable.auto.commit": False}
        )
        consumer.subscribe([self.queue])
        while count > 0:
            records = consumer.consume(BATCH, 0.1)
            for record in records:
                work(_text(dict(record.headers() or ())["id"] or b""))
            if records:
                consumer.commit(asynchronous=False)
                count -= len(records)
        consumer.close()


class RabbitMQ(Broker):
    shown, engine = "RabbitMQ", "rabbitmq"

    @property
    def url(self) -> str:
        return f"{self.server.url}?queue={self.queue}"

    def _fill(self, ids: list[str]) -> None:
        asyncio.run(self._publish(ids))

    async def _publish(self, ids: list[str]) -> None:
        import aio_pika

        async with await aio_pika.connect(self.server.url) as connection:
            channel = await connection.channel()
            await channel.declare_queue(
                self.queue, durable=True, arguments={"x-queue-type": "quorum"}
            )
            exchange = channel.default_exchange
            for some in _pages(ids):
                sent = (
                    exchange.publish(aio_pika.Message(BODY, message_id=id_), self.queue)
                    for id_ in some
                )
                await asyncio.gather(*sent)

    def loop(self, work: Work, count: int) -> None:
        asyncio.run(self._loop(work, count))

    async def _loop(self, work: Work, count: int) -> None:
        import aio_pika

        async with await aio_pika.connect(self.server.url) as connection:
            channel = await connection.channel()
            await channel.set_qos(BATCH)
            queue = await channel.get_queue(self.queue)
            unacknowledged = 0
            async with queue.iterator() as messages:
                async for message in messages:
                    work(message.message_id or "")
                    unacknowledged, count = unacknowledged + 1, count - 1
                    if unacknowledged == BATCH // 2 or count == 0:
                        await message.ack(multiple=True)
                        unacknowledged = 0
                    if count == 0:
                        break


class Nats(Broker):
    shown, engine = "NATS JetStream", "nats"

    @property
    def url(self) -> str:
        return f"{self.server.url}?stream={self.queue}&durable=billing"

    def _fill(self, ids: list[str]) -> None:
        asyncio.run(self._publish(ids))

    async def _publish(self, ids: list[str]) -> None:
        import nats

        connection = await nats.connect(self.server.url)
        jetstream = connection.jetstream()
        await jetstream.add_stream(name=self.queue, subjects=[f"{self.queue}.>"])
        for some in _pages(ids):
            sent = (
                jetstream.publish(f"{self.queue}.new", BODY, headers={"Nats-Msg-Id": id_})
                for id_ in some
            )
            await asyncio.gather(*sent)
        await connection.close()

    def loop(self, work: Work, count: int) -> None:
        asyncio.run(self._loop(work, count))

    async def _loop(self, work: Work, count: int) -> None:
        import nats

        connection = await nats.connect(self.server.url)
        durable = await connection.jetstream().pull_subscribe("", "billing", stream=self.queue)
        while count > 0:
            messages = await durable.fetch(min(BATCH, count), timeout=10)
            for message in messages:
                work((message.headers or {})["Nats-Msg-Id"])
                await message.ack()
            count -= len(messages)
        await connection.flush()
        await connection.close()


class RedisStreams(Broker):
    shown, engine = "Redis Streams", "valkey"

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.server.port}/0?stream={self.queue}&group=billing"

    def _fill(self, ids: list[str]) -> None:
        with self.server.client() as client:
            for some in _pages(ids):
                pipe = client.pipeline(transaction=False)
                for id_ in some:
                    fields = {"id": id_, "topic": "orders", "headers": "{}", "body": BODY}
                    pipe.xadd(self.queue, fields)
                pipe.execute()

    def loop(self, work: Work, count: int) -> None:
        with self.server.client() as client:
            client.xgroup_create(self.queue, "billing", "0")
            while count > 0:
                ((_, entries),) = client.xreadgroup("billing", "w", {self.queue: ">"}, count=BATCH)
                for _, fields in entries:
                    work(_text(fields[_like(fields, "id")]))
                client.xack(self.queue, "billing", *(entry for entry, _ in entries))
                count -= len(entries)


class Sqs(Broker):
    shown, engine = "SQS (emulator)", "ministack"

    @property
    def url(self) -> str:
        return f"sqs://{self.queue}?region=us-east-1&endpoint={self._endpoint}"

    @property
    def _endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    def _client(self) -> Any:
        import boto3

        known = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
        return boto3.client("sqs", "us-east-1", endpoint_url=self._endpoint, **known)

    def _fill(self, ids: list[str]) -> None:
        client = self._client()
        queue = client.create_queue(QueueName=self.queue)["QueueUrl"]
        for some in _pages(ids, 10):
            entries = [
                {
                    "Id": str(n),
                    "MessageBody": BODY.decode(),
                    "MessageAttributes": {"id": {"DataType": "String", "StringValue": id_}},
                }
                for n, id_ in enumerate(some)
            ]
            client.send_message_batch(QueueUrl=queue, Entries=entries)
        client.close()

    def loop(self, work: Work, count: int) -> None:
        client = self._client()
        queue = client.get_queue_url(QueueName=self.queue)["QueueUrl"]
        while count > 0:
            reply = client.receive_message(
                QueueUrl=queue, MaxNumberOfMessages=10, MessageAttributeNames=["All"]
            )
            messages = reply.get("Messages", [])
            for message in messages:
                work(message["MessageAttributes"]["id"]["StringValue"])
            done = [
                {"Id": str(n), "ReceiptHandle": message["ReceiptHandle"]}
                for n, message in enumerate(messages)
            ]
            if done:
                client.delete_message_batch(QueueUrl=queue, Entries=done)
            count -= len(done)
        client.close()


BROKERS: tuple[type[Broker], ...] = (Kafka, RabbitMQ, Nats, RedisStreams, Sqs)


def _pages(ids: list[str], size: int = 500) -> Iterator[list[str]]:
    for start in range(0, len(ids), size):
        yield ids[start : start + size]


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode()


def _like(fields: dict[Any, Any], name: str) -> Any:
    """The name as this client has it: text or bytes."""
    return name if name in fields else name.encode()
