"""FastStream: streams of a real Valkey, and the keys of its other brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from faststream import BaseMiddleware, Response
from faststream.exceptions import AckMessage, NackMessage, RejectMessage, SkipMessage
from faststream.redis import ListSub, RedisBroker, StreamSub, TestRedisBroker
from pydantic import BaseModel
from pydantic_core import PydanticSerializationError

from twicesafe import AsyncReceiver, Backoff, Key, Policy, State
from twicesafe.consumers import DeadLetter
from twicesafe.errors import ConfigurationError, FingerprintMismatchError, MissingKeyError
from twicesafe.integrations.faststream import IdempotentMessages, message_key

POLICY = Policy(max_attempts=2, backoff=Backoff(first=0))
KEYED = {"idempotency-key": '"o-1"'}


@pytest.fixture
async def receiver() -> AsyncIterator[AsyncReceiver]:
    async with AsyncReceiver.open("memory://", policy=POLICY) as opened:
        yield opened


async def test_a_repeat_is_answered_and_published_again(receiver: AsyncReceiver) -> None:
    """The first publication may have been lost with its worker."""
    ran: list[int] = []
    published: list[str] = []
    middleware = IdempotentMessages(
        receiver, key=lambda message: message.headers.get("order") or Key.random()
    )
    broker = RedisBroker(middlewares=[middleware])

    @broker.subscriber("orders")
    @broker.publisher("receipts")
    async def charge(cents: int) -> str:
        ran.append(cents)
        return f"charged {cents}"

    @broker.subscriber("receipts")
    async def read(receipt: str) -> None:
        published.append(receipt)

    async with TestRedisBroker(broker):
        for _ in range(2):
            await broker.publish(5, "orders", headers={"order": "o-1"})
    assert ran == [5]
    assert published == ["charged 5"] * 2


async def test_a_stream_of_a_real_server(
    receiver: AsyncReceiver, valkey: Any, valkey_url: str
) -> None:
    """A failed message stays pending, is claimed again, and is a dead letter after its last attempt."""
    ran: list[str] = []
    letters: list[str] = []
    done = asyncio.Event()

    async def send(message: Any, error: Exception) -> None:
        letters.append(str(error.__cause__))
        done.set()

    name = valkey_url.rpartition("=")[2]
    middleware = IdempotentMessages(receiver, dead_letter=send)
    broker = RedisBroker(valkey.url, middlewares=[middleware], logger=None, graceful_timeout=60)
    fresh = StreamSub(name, group="g", consumer="one", last_id=">", polling_interval=10)
    again = StreamSub(name, group="g", consumer="two", min_idle_time=1, polling_interval=10)

    async def handle(order: str) -> None:
        ran.append(order)
        if order == "bad":
            raise ValueError("no")

    broker.subscriber(stream=fresh)(handle)
    broker.subscriber(stream=again)(handle)
    async with broker:
        await broker.start()
        await broker.publish("good", stream=name)
        await broker.publish("bad", stream=name)
        async with asyncio.timeout(60):
            await done.wait()
    with valkey.client() as client:
        assert client.xpending(name, "g")["pending"] == 0
    assert sorted(ran) == ["bad", "bad", "good"]
    assert letters == ["no"]


async def test_verdicts_are_nack_and_reject(receiver: AsyncReceiver) -> None:
    seen: list[str] = []
    letters: list[Exception] = []

    async def send(message: Any, error: Exception) -> None:
        letters.append(error)
        if len(letters) == 1:
            raise OSError("no dead letters now")

    broker = RedisBroker(middlewares=[IdempotentMessages(receiver, dead_letter=send)])

    @broker.subscriber("orders")
    async def charge(order: str) -> None:
        seen.append(order)
        raise DeadLetter("no address")

    async with TestRedisBroker(broker):
        with pytest.raises(NackMessage):
            await broker.publish("a", "orders", headers=KEYED)
        for order, headers in (("a", KEYED), ("b", KEYED), ("c", {})):
            with pytest.raises(AckMessage):
                await broker.publish(order, "orders", headers=headers)
    assert seen == ["a"]
    assert [type(letter) for letter in letters[2:]] == [FingerprintMismatchError, MissingKeyError]


@pytest.mark.parametrize("raised", [AckMessage, RejectMessage, NackMessage, SkipMessage])
async def test_a_subscriber_decides_as_without_the_middleware(
    receiver: AsyncReceiver, raised: type[Exception]
) -> None:
    ran: list[str] = []
    broker = RedisBroker(middlewares=[IdempotentMessages(receiver)])

    @broker.subscriber("orders")
    async def charge(order: str) -> None:
        ran.append(order)
        raise raised

    async with TestRedisBroker(broker):
        for _ in range(2):
            with pytest.raises((raised, RejectMessage)):
                await broker.publish("a", "orders", headers=KEYED)
    again = raised in (NackMessage, SkipMessage)
    assert ran == (["a", "a"] if again else ["a"])
    record = await receiver.record(Key("o-1", scope=("Charge", "orders")))
    assert record is not None
    assert (record.state is State.COMPLETED) == (raised is AckMessage)


async def test_a_repeat_of_an_acknowledged_message_publishes_nothing(
    receiver: AsyncReceiver,
) -> None:
    published: list[Any] = []
    broker = RedisBroker(middlewares=[IdempotentMessages(receiver)])

    @broker.subscriber("orders")
    @broker.publisher("receipts")
    async def charge(order: str) -> str:
        raise AckMessage

    @broker.subscriber("receipts")
    async def read(receipt: Any) -> None:
        published.append(receipt)

    async with TestRedisBroker(broker):
        for _ in range(2):
            with pytest.raises(AckMessage):
                await broker.publish("a", "orders", headers=KEYED)
    assert published == []


async def test_answers_to_requests_pass(receiver: AsyncReceiver) -> None:
    broker = RedisBroker(middlewares=[IdempotentMessages(receiver)])

    @broker.subscriber("orders")
    async def charge(order: str) -> str:
        return f"charged {order}"

    async with TestRedisBroker(broker):
        for _ in range(2):
            answer = await broker.request("a", "orders", headers=KEYED)
            assert await answer.decode() == "charged a"


async def test_a_batch_has_no_key_and_does_not_run(
    receiver: AsyncReceiver,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With the key of its first message, the others would be taken for repeats, or be lost with it."""
    monkeypatch.setattr("twicesafe.integrations.faststream.LONGEST_PAUSE", 0)
    ran: list[Any] = []
    broker = RedisBroker(middlewares=[IdempotentMessages(receiver)])

    @broker.subscriber(list=ListSub("orders", batch=True))
    async def charge(orders: list[str]) -> None:
        ran.extend(orders)

    async with TestRedisBroker(broker):
        with pytest.raises(NackMessage):
            await broker.publish_batch("a", "b", list="orders")
    assert ran == []
    assert "Charge subscribes to batches" in caplog.text


async def test_a_key_of_ones_own_is_good_for_a_batch(receiver: AsyncReceiver) -> None:
    ran: list[Any] = []
    broker = RedisBroker(middlewares=[IdempotentMessages(receiver, key=lambda message: "b-1")])

    @broker.subscriber(list=ListSub("orders", batch=True))
    async def charge(orders: list[str]) -> None:
        ran.extend(orders)

    async with TestRedisBroker(broker):
        for _ in range(2):
            await broker.publish_batch("a", "b", list="orders")
    assert ran == ["a", "b"]


class Receipt(BaseModel):
    cents: int


class Passing(BaseMiddleware[Any, Any]):
    async def consume_scope(self, call_next: Any, msg: Any) -> Any:
        return await call_next(msg)


async def test_a_model_is_published_again_as_it_was(receiver: AsyncReceiver) -> None:
    """A repeat published an empty message: the middleware did not know the type that the subscriber returns."""
    published: list[Any] = []
    middleware = IdempotentMessages(
        receiver, key=lambda message: message.headers.get("order") or Key.random()
    )
    broker = RedisBroker(middlewares=[middleware, Passing])

    @broker.subscriber("orders")
    @broker.publisher("receipts")
    async def charge(order: str) -> Receipt:
        return Receipt(cents=500)

    @broker.subscriber("refunds")
    @broker.publisher("receipts")
    def refund(order: str) -> list[Receipt]:
        return [Receipt(cents=-500)]

    @broker.subscriber("receipts")
    async def read(receipt: Any) -> None:
        published.append(receipt)

    async with TestRedisBroker(broker):
        for _ in range(2):
            await broker.publish("a", "orders", headers={"order": "o-1"})
            await broker.publish("a", "refunds", headers={"order": "o-1"})
    assert published == [{"cents": 500}, [{"cents": -500}]] * 2


class Frame:
    def __eq__(self, other: object) -> bool:
        raise ValueError("the truth value of a frame is ambiguous")

    __hash__ = None  # type: ignore[assignment]


async def test_a_result_that_cannot_be_compared_is_passed_on(receiver: AsyncReceiver) -> None:
    """As those of pandas and numpy. FastStream decides whether it can publish them."""
    broker = RedisBroker(middlewares=[IdempotentMessages(receiver, key=lambda message: "o-1")])

    @broker.subscriber("orders")
    async def charge(order: str) -> Any:
        return Frame()

    async with TestRedisBroker(broker):
        with pytest.raises(PydanticSerializationError):
            await broker.publish("a", "orders")


async def test_a_subscriber_that_returns_a_model_may_acknowledge_instead(
    receiver: AsyncReceiver,
) -> None:
    ran: list[str] = []
    broker = RedisBroker(middlewares=[IdempotentMessages(receiver, key=lambda message: "o-1")])

    @broker.subscriber("orders")
    async def charge(order: str) -> Receipt:
        ran.append(order)
        raise AckMessage

    async with TestRedisBroker(broker):
        for _ in range(2):
            with pytest.raises(AckMessage):
                await broker.publish("a", "orders")
    assert ran == ["a"]


async def test_of_a_response_object_nothing_is_kept(receiver: AsyncReceiver) -> None:
    published: list[Any] = []
    middleware = IdempotentMessages(
        receiver, key=lambda message: message.headers.get("order") or Key.random()
    )
    broker = RedisBroker(middlewares=[middleware])

    @broker.subscriber("orders")
    @broker.publisher("receipts")
    async def charge(order: str) -> Response:
        return Response("charged")

    @broker.subscriber("receipts")
    async def read(receipt: Any) -> None:
        published.append(receipt)

    async with TestRedisBroker(broker):
        for _ in range(2):
            await broker.publish("a", "orders", headers={"order": "o-1"})
    assert published == ["charged", b""]


async def test_without_dead_letters_the_broker_rejects(receiver: AsyncReceiver) -> None:
    broker = RedisBroker(middlewares=[IdempotentMessages(receiver)])

    @broker.subscriber("orders")
    async def charge(order: str) -> None:
        raise DeadLetter("no address")

    async with TestRedisBroker(broker):
        with pytest.raises(RejectMessage):
            await broker.publish("a", "orders", headers=KEYED)


RAW = SimpleNamespace
TIME = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "raw, headers, key",
    [
        ({"message_ids": [b"1-0"]}, {}, "position:1-0"),
        ({"data": b""}, {"message_id": "m"}, "m"),
        (RAW(message_id="m-1"), {}, "m-1"),
        (RAW(topic="t", partition=0, offset=7), {}, "position:t/0/7"),
        (RAW(topic=lambda: "t", partition=lambda: 0, offset=lambda: 7), {}, "position:t/0/7"),
        (RAW(topic="t", partition=0, offset=7, timestamp=5), {}, "position:t/0/7@5"),
        (RAW(), {"Nats-Msg-Id": "n"}, "n"),
        (
            RAW(metadata=RAW(stream="S", sequence=RAW(stream=9), timestamp=TIME)),
            {"correlation_id": "c"},
            "position:S/9@2026-01-01T00:00:00+00:00",
        ),
    ],
)
def test_the_key_of_a_message(raw: Any, headers: dict[str, str], key: str) -> None:
    message: Any = SimpleNamespace(raw_message=raw, headers=headers)
    found = message_key(message)
    assert (found.value if isinstance(found, Key) else found) == key


def test_ids_that_faststream_makes_up_are_not_keys() -> None:
    message: Any = SimpleNamespace(
        raw_message={"data": b""}, headers={"correlation_id": "c"}, message_id="random"
    )
    with pytest.raises(MissingKeyError):
        message_key(message)


async def test_running_without_a_store_is_refused(receiver: AsyncReceiver) -> None:
    with pytest.raises(ConfigurationError, match="outage='run'"):
        IdempotentMessages(receiver.options(policy=Policy(outage="run")))


async def test_one_subscriber_of_two_streams_has_two_messages_of_one_id(
    receiver: AsyncReceiver, valkey: Any, valkey_url: str
) -> None:
    """Redis counts the entries of a millisecond per stream, so equal ids are usual."""
    name = valkey_url.rpartition("=")[2]
    streams = [f"{name}-eu", f"{name}-us"]
    ran: list[str] = []
    done = asyncio.Event()
    broker = RedisBroker(valkey.url, middlewares=[IdempotentMessages(receiver)], logger=None)

    async def handle(order: str) -> None:
        ran.append(order)
        if len(ran) == 2:
            done.set()

    for stream in streams:
        valkey.client().xadd(stream, {"data": stream}, id="5-0")
        broker.subscriber(stream=StreamSub(stream, last_id="0", polling_interval=10))(handle)
    async with broker:
        await broker.start()
        await asyncio.wait_for(done.wait(), 60)
    assert sorted(ran) == streams


async def test_a_plain_dead_letter_function_is_enough(receiver: AsyncReceiver) -> None:
    letters: list[Any] = []
    middleware = IdempotentMessages(receiver, dead_letter=lambda *given: letters.append(given))
    broker = RedisBroker(middlewares=[middleware], logger=None)

    @broker.subscriber("orders")
    async def refuse(order: str) -> None:
        raise DeadLetter("no")

    async with TestRedisBroker(broker):
        with pytest.raises(AckMessage):
            await broker.publish("o", "orders", headers=KEYED)
    assert len(letters) == 1
