"""FastStream with the deduplication that its users write by hand: SETNX before, SET after, for each message.

It has no lease, no attempts and no fence: a crash in between loses the message. FastStream runs the messages of a
Kafka partition one after the other, those of other brokers up to 100 at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, Final

from .brokers import BATCH, Broker

__all__ = ["consumed_by_faststream", "knows"]


def _kafka(broker: Any, handle: Callable[..., Any]) -> Any:
    from faststream import AckPolicy
    from faststream.confluent import KafkaBroker

    app = KafkaBroker(broker.server.bootstrap, logger=None)
    app.subscriber(
        broker.queue,
        group_id=broker.queue,
        auto_offset_reset="earliest",
        ack_policy=AckPolicy.ACK,
    )(handle)
    return app


def _rabbitmq(broker: Any, handle: Callable[..., Any]) -> Any:
    from faststream.rabbit import Channel, QueueType, RabbitBroker, RabbitQueue

    app = RabbitBroker(
        broker.server.url, logger=None, default_channel=Channel(prefetch_count=BATCH)
    )
    app.subscriber(RabbitQueue(broker.queue, durable=True, queue_type=QueueType.QUORUM))(handle)
    return app


def _nats(broker: Any, handle: Callable[..., Any]) -> Any:
    from faststream.nats import JStream, NatsBroker, PullSub

    app = NatsBroker(broker.server.url, logger=None)
    app.subscriber(
        f"{broker.queue}.>",
        durable="billing",
        stream=JStream(broker.queue, declare=False),
        pull_sub=PullSub(BATCH),
        max_workers=BATCH,
    )(handle)
    return app


def _redis(broker: Any, handle: Callable[..., Any]) -> Any:
    from faststream.redis import RedisBroker, StreamSub

    url = f"redis://127.0.0.1:{broker.server.port}/0"
    app = RedisBroker(url, logger=None)  # type: ignore[arg-type]
    stream = StreamSub(broker.queue, group="billing", consumer="w", last_id="0", max_records=BATCH)
    app.subscriber(stream=stream, max_workers=BATCH)(handle)
    return app


def _in_headers(raw: Any) -> str:
    return str(dict(raw.headers())["id"], "ascii")


_KINDS: Final[dict[str, tuple[Callable[..., Any], Callable[[Any], str]]]] = {
    "kafka": (_kafka, _in_headers),
    "rabbitmq": (_rabbitmq, lambda raw: raw.message_id),
    "nats": (_nats, lambda raw: raw.headers["Nats-Msg-Id"]),
    "valkey": (_redis, lambda raw: raw["data"][b"id"].decode()),
}


def knows(broker: Broker) -> bool:
    """FastStream has no SQS."""
    return broker.engine in _KINDS


def consumed_by_faststream(broker: Broker, count: int, valkey: str, told: Any) -> None:
    """Handle so many messages; `told` hears how many are left, first and after each."""
    asyncio.run(_consumed(broker, count, valkey, told))


async def _consumed(broker: Broker, count: int, valkey: str, told: Any) -> None:
    import redis.asyncio
    from faststream import Context

    open_, identify = _KINDS[broker.engine]
    left, done = count, asyncio.Event()

    async def handle(body: bytes, message: Annotated[Any, Context("message")]) -> None:
        nonlocal left
        told(left)
        id_ = identify(message.raw_message)
        if await client.set(id_, "1", nx=True, ex=86400):
            await client.set(id_, "done", ex=86400)
        left -= 1
        told(left)
        if left == 0:
            done.set()

    # Its annotations are read by FastStream, which does not know this function's names.
    handle.__annotations__ = {"body": Any, "message": Annotated[Any, Context("message")]}
    async with redis.asyncio.from_url(valkey) as client:
        app = open_(broker, handle)
        await app.start()
        await done.wait()
        await app.stop()
