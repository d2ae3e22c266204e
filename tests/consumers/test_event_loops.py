"""An async consumer that runs on one event loop after another: two `asyncio.run`, in a cron job or a test."""

from __future__ import annotations

import asyncio
import gc
import uuid
from typing import Any

import pytest

from twicesafe import AsyncReceiver
from twicesafe._runtime.adapting import for_event_loop
from twicesafe.consumers import AsyncConsumer, Message
from twicesafe.outbox.publishers import Message as Outgoing
from twicesafe.outbox.publishers import open_publisher


async def _make_queue(url: str, name: str) -> None:
    import aio_pika

    async with await aio_pika.connect(url) as connection:
        await (await connection.channel()).declare_queue(name, durable=True)


async def _make_stream(url: str, name: str) -> None:
    import nats

    connection = await nats.connect(url)
    await connection.jetstream().add_stream(name=name, subjects=[f"{name}.>"])
    await connection.close()


async def _send(publisher_url: str, topic: str, id_: str) -> None:
    publisher: Any = for_event_loop(open_publisher(publisher_url), "publish")
    assert await publisher.publish([Outgoing(id_, topic, b"{}")]) == [None]
    await publisher.close()


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of connections that a closed loop has left
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("engine", ["rabbitmq", "nats", "valkey"])
def test_a_consumer_runs_on_one_loop_after_another(
    engine: str, request: pytest.FixtureRequest
) -> None:
    server = request.getfixturevalue(engine)
    name = f"orders{uuid.uuid4().hex[:8]}"
    place, topic = server.url, name
    url = f"{server.url}?queue={name}"
    if engine == "rabbitmq":
        asyncio.run(_make_queue(server.url, name))
    elif engine == "nats":
        asyncio.run(_make_stream(server.url, name))
        topic, url = f"{name}.new", f"{server.url}?stream={name}&durable=billing"
    else:
        place = f"redis://127.0.0.1:{server.port}/0?stream={name}"
        url = f"{place}&group=billing"
    handled: list[str | None] = []

    async def handle(message: Message) -> None:
        handled.append(message.id)

    consumer = AsyncConsumer.open(url, receiver=AsyncReceiver.open("memory://"))
    for id_ in ("o-1", "o-2", "o-3"):
        asyncio.run(_send(place, topic, id_))
        report = asyncio.run(consumer.drain(handle, idle=0.3))
        assert (report.received, report.ran) == (1, 1)
    asyncio.run(consumer.close())
    gc.collect()  # here, where their warnings are expected
    assert handled == ["o-1", "o-2", "o-3"]
