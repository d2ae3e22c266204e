"""RabbitMQ as a source, on a real server: the rules with a quorum queue and with a classic one."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, ClassVar
from urllib.parse import urlencode

import pytest
from aiormq import spec
from aiormq.abc import DeliveredMessage
from msgspec.structs import replace
from pamqp.header import ContentHeader

from tests.consumers.proxied import BehindProxies, problems
from tests.polling import until
from twicesafe._core.consuming.message import Message, key_of
from twicesafe.consumers.sources._amqp import _Questions, message_of, queue_settings
from twicesafe.consumers.sources.rabbitmq import RabbitSource, Receipt
from twicesafe.errors import BrokerUnavailableError, ConfigurationError, MissingKeyError
from twicesafe.testing import ConsumerConformance
from twicesafe.testing._sources import SETTINGS, BlockingSource

_numbers = itertools.count(1)


class Queues(BehindProxies):
    """A queue; its sources consume from it."""

    arguments: ClassVar[dict[str, Any]] = {"x-queue-type": "quorum"}

    def use(self, server: Any) -> None:
        self.port, self.url = server.port, server.url
        self.queue = f"source{next(_numbers)}_{os.getpid()}"
        self.declare(self.arguments)

    def declare(self, arguments: dict[str, Any], durable: bool = True) -> None:
        self.ask(
            lambda channel: channel.declare_queue(self.queue, durable=durable, arguments=arguments)
        )

    def ask(self, question: Callable[[Any], Awaitable[Any]]) -> Any:
        import aio_pika

        async def asked() -> Any:
            async with await aio_pika.connect(self.url) as connection:
                return await question(await connection.channel())

        return asyncio.run(asked())

    def open_source(self, **options: str) -> Any:
        query = urlencode({"queue": self.queue, "prefetch": "20", "timeout": "3"} | options)
        return self.through_proxy(
            lambda port: RabbitSource.open(f"amqp://guest:guest@127.0.0.1:{port}/?{query}")
        )

    def publisher_url(self) -> str:
        return self.url

    def topic(self) -> str:
        return self.queue

    def dead_letters(self) -> list[str]:
        async def all_of_it(channel: Any) -> list[str]:
            queue = await channel.get_queue(f"{self.queue}.dead")
            found = []
            while (message := await queue.get(no_ack=True, fail=False)) is not None:
                found.append(message.message_id)
            return found

        return self.ask(all_of_it)  # type: ignore[no-any-return]

    def own_broker(self) -> Callable[[], object]:
        server = self.launch("rabbitmq")
        self.use(server)
        return server.restart  # type: ignore[no-any-return]


class TestQuorumQueue(Queues, ConsumerConformance):
    @pytest.fixture(autouse=True)
    def _broker(self, _proxies: None, rabbitmq: Any) -> None:
        self.use(rabbitmq)


class TestClassicQueue(Queues, ConsumerConformance):
    arguments: ClassVar[dict[str, Any]] = {}
    counts = False

    @pytest.fixture(autouse=True)
    def _broker(self, _proxies: None, rabbitmq: Any) -> None:
        self.use(rabbitmq)


class Stage(Queues, ConsumerConformance):
    """For the tests below, which are not rules of all sources."""

    @contextmanager
    def source(self, **options: str) -> Iterator[BlockingSource]:
        member = BlockingSource(self.open_source(**options))
        try:
            yield member
        finally:
            member.end()

    def put(self, **fields: Any) -> None:
        """A message that another program sends."""
        import aio_pika

        message = aio_pika.Message(b"body", **fields)
        self.ask(lambda channel: channel.default_exchange.publish(message, self.queue))

    def delete(self) -> None:
        self.ask(lambda channel: channel.queue_delete(self.queue))

    def replace(self, arguments: dict[str, Any], durable: bool = True) -> None:
        self.delete()
        self.declare(arguments, durable)


Stage.__test__ = False  # type: ignore[attr-defined]


@pytest.fixture
def stage(rabbitmq: Any) -> Iterator[Stage]:
    made = Stage()
    with ExitStack() as made.stack:
        made.proxies = {}
        made.use(rabbitmq)
        yield made


def test_headers_of_any_type_become_text(stage: Stage):
    when = datetime(2030, 1, 2, tzinfo=UTC)
    headers = {
        "Text": "a", "number": 7, "yes": True, "raw": bytearray(b"r\xff"), "when": when, "some": [1, "b"],
        "table": {"a": 1}, "none": None,
    }  # fmt: skip
    stage.put(headers=headers, content_type="text/plain", type="order", message_id="m-1")
    with stage.source() as member:
        (got,) = member.fetch(1, stage.seconds)
        assert got.message.headers == {
            "text": "a", "number": "7", "yes": "true", "raw": "r\\xff", "some": '[1,"b"]',
            "when": '"2030-01-02T00:00:00Z"', "table": '{"a":1}', "none": "null",
            "content-type": "text/plain", "type": "order",
        }  # fmt: skip
        assert (got.message.id, got.message.position) == ("m-1", "")
        member.acknowledge([got.receipt])


def test_a_message_without_an_id_has_no_key():
    """Of another client: aio-pika gives each message an id, and a retry another one."""
    delivery = spec.Basic.Deliver(routing_key="orders", delivery_tag=1, redelivered=False)
    raw = DeliveredMessage(delivery, ContentHeader(), b"body", None)  # type: ignore[arg-type]
    message = message_of(raw)
    assert message == Message(None, "orders", b"body", deliveries=1)
    with pytest.raises(MissingKeyError):
        key_of(message)


def test_a_tag_of_a_lost_channel_settles_nothing_on_the_next(stage: Stage):
    with stage.source() as member:
        (sent,) = stage.send()
        (old,) = stage.gather(member, sent.id).values()
        stage.hang_up()
        (new,) = stage.gather(member, sent.id).values()
        assert old.receipt.tag == new.receipt.tag == 1
        assert member.source._held == {new.receipt}  # the old one takes no memory
        member._arrived(SimpleNamespace(channel=old.receipt.channel))  # a task of the old channel
        assert not member.source._come
        member.acknowledge([old.receipt])
        member.give_back([old.receipt], 0)
        stage.lose(member.source)
    with stage.source() as member:
        (again,) = stage.gather(member, sent.id).values()
        assert again.message.deliveries == 3
        member.acknowledge([again.receipt])


def test_a_channel_that_the_broker_closes_is_replaced(stage: Stage):
    """As it does after its consumer_timeout: the connection lives on."""
    with stage.source() as member:
        (sent,) = stage.send()
        (old,) = stage.gather(member, sent.id).values()
        asking = asyncio.run_coroutine_threadsafe(
            member.source.fetch(1, stage.seconds), member.loop
        )
        wrong = member.source._channel.basic_ack(999)
        asyncio.run_coroutine_threadsafe(wrong, member.loop).result()
        with pytest.raises(BrokerUnavailableError, match="closed the channel"):
            asking.result(stage.seconds)
        member.acknowledge([old.receipt])  # void
        (again,) = stage.gather(member, sent.id).values()
        member.acknowledge([again.receipt])


def test_a_missing_queue_is_an_outage_until_it_is_there(stage: Stage):
    stage.delete()
    with stage.source() as member:
        with pytest.raises(BrokerUnavailableError, match=f"no queue '{stage.queue}'"):
            member.fetch(1, 0)
        stage.declare(stage.arguments)
        (sent,) = stage.send()
        stage.gather(member, sent.id)


def test_a_queue_that_is_deleted_is_noticed_by_a_fetch_that_waits(stage: Stage):
    with stage.source() as member:
        member.fetch(1, 0)
        asking = asyncio.run_coroutine_threadsafe(
            member.source.fetch(1, stage.seconds), member.loop
        )
        stage.delete()
        with pytest.raises(BrokerUnavailableError, match="stopped sending"):
            asking.result(stage.seconds)
        stage.declare(stage.arguments)
        (sent,) = stage.send()
        stage.gather(member, sent.id)


def test_a_user_who_may_only_read_consumes(stage: Stage, rabbitmq: Any):
    stage.put(message_id="m-1")
    url = stage.url.replace("guest:guest", rabbitmq.reader())
    member = BlockingSource(RabbitSource.open(f"{url}?queue={stage.queue}"))
    try:
        (problem,) = problems(member, replace(SETTINGS, ordered=True))
        assert "may not see the settings" in problem
        assert member.source._returns_by_closing  # it may be a quorum queue
        (got,) = member.fetch(1, stage.seconds)
        member.acknowledge([got.receipt])
    finally:
        member.end()


def test_no_more_than_the_prefetch_are_held(stage: Stage):
    with stage.source(prefetch="3") as member:
        ids = [sent.id for sent in stage.send(5)]
        got = stage.gather(member, *ids[:3])
        assert list(member.fetch(10, 0.2)) == []
        member.acknowledge([one.receipt for one in got.values()])
        stage.gather(member, *ids[3:])


@pytest.mark.parametrize("prefetch, most", [("200", 10_000), ("3", 3)])
def test_an_operator_may_hold_many_messages(stage: Stage, prefetch: str, most: int):
    with stage.source(prefetch=prefetch) as member:
        member.source.hold_many()
        assert member.source.most_held == most


def test_what_was_pushed_and_not_fetched_goes_to_another(stage: Stage):
    with stage.source() as member:
        ids = [sent.id for sent in stage.send(5)]
        member.fetch(1, stage.seconds)
        until(lambda: len(member.source._come) == 4)
    with stage.source() as other:
        stage.gather(other, *ids)


def test_a_dead_queue_stays_as_it_is_if_it_exists(stage: Stage):
    wish = {"x-queue-type": "quorum"}
    name = f"{stage.queue}.dead"
    stage.ask(lambda channel: channel.declare_queue(name, durable=True, arguments=wish))
    with stage.source() as member:
        member.prepare_dead_letters()
        assert stage.dead_letters() == []


# --- the check --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, durable, terms, expected",
    [
        ({"x-queue-type": "quorum"}, True, {"longest_backoff": 600}, ["held for 3100 s"]),
        ({"x-queue-type": "quorum"}, True, {"timeout": None}, []),
        ({"x-queue-type": "quorum", "x-delivery-limit": 50}, True, {}, ["RabbitMQ drops it"]),
        (
            {"x-queue-type": "quorum", "x-delivery-limit": 50, "x-dead-letter-exchange": "x"},
            *(True, {}, []),
        ),
        (
            {"x-queue-type": "quorum", "x-delivery-limit": 5, "x-dead-letter-exchange": "x"},
            *(True, {}, ["after 5 of them RabbitMQ sends it to its own dead letters"]),
        ),
        (
            {
                "x-queue-type": "quorum",
                "x-delivery-limit": 7,
                "x-max-length": 9,
                "x-expires": 99999,
                "x-overflow": "reject-publish",
                "x-single-active-consumer": True,
            },
            *(True, {}, ["after 7 of them RabbitMQ drops it"]),
        ),
        ({}, False, {}, ["is not durable"]),
        ({"x-max-priority": 3}, False, {}, ["is not durable"]),
        ({"x-queue-type": "classic"}, True, {}, []),
    ],
)
def test_check_says_what_will_go_wrong(
    stage: Stage,
    arguments: dict[str, Any],
    durable: bool,
    terms: dict[str, Any],
    expected: list[str],
):
    stage.replace(arguments, durable)
    with stage.source() as member:
        found = problems(member, replace(SETTINGS, **terms))
        assert len(found) == len(expected)
        assert all(part in problem for part, problem in zip(expected, found, strict=True))


def test_check_knows_the_delivery_limit_of_rabbitmq_4(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("twicesafe.consumers.sources._amqp._major", lambda _: 4)
    with stage.source() as member:
        (problem,) = problems(member, replace(SETTINGS, ordered=True))
        assert "after 20 of them RabbitMQ drops it" in problem


def test_a_stream_is_found_out(stage: Stage):
    stage.replace({"x-queue-type": "stream"})
    settings = stage.ask(lambda channel: queue_settings(channel._connection, stage.queue))
    assert settings.kind == "stream"


def test_asking_for_the_settings_of_a_queue_creates_none(stage: Stage):
    """Not even if it is deleted between two questions."""
    stage.delete()

    async def asked(channel: Any) -> None:
        connection = channel._connection
        await queue_settings(connection, stage.queue)
        questions = _Questions(connection, stage.queue)
        questions.known["x-queue-type"] = "quorum"
        for wish in (
            {"x-delivery-limit": "twicesafe-asks", "x-queue-version": "twicesafe-asks"},
            {"x-dead-letter-exchange": 1},
        ):
            assert await questions.value_of(wish, "") is None

    stage.ask(asked)
    with stage.source() as member, pytest.raises(BrokerUnavailableError, match="NOT_FOUND"):
        member.fetch(1, 0)


@pytest.mark.parametrize("prefetch", ["0", "65536", "some"])
def test_a_prefetch_that_amqp_cannot_say_is_refused(prefetch: str):
    with pytest.raises(ConfigurationError, match="option prefetch"):
        RabbitSource.open(f"amqp://127.0.0.1/?queue=orders&prefetch={prefetch}")


def test_a_url_without_a_queue():
    with pytest.raises(ConfigurationError, match="add queue="):
        RabbitSource.open("amqp://127.0.0.1:1/")


async def test_what_is_acknowledged_right_before_the_end_is_sent(stage: Stage):
    import aio_pika

    stage.send(5)
    source = RabbitSource.open(f"{stage.url}?queue={stage.queue}")
    got: list[Any] = []
    while len(got) < 5:
        got += await source.fetch(5, stage.seconds)
    await source.acknowledge([one.receipt for one in got])
    await source.close()
    async with await aio_pika.connect(stage.url) as connection:
        queue = await (await connection.channel()).get_queue(stage.queue)
        assert await queue.get(fail=False) is None


def test_what_is_given_back_at_the_end_keeps_its_order(stage: Stage):
    """A quorum queue would put single messages behind those that were never sent."""
    ids = [sent.id for sent in stage.send(40)]
    with stage.source() as member:
        member.check(replace(SETTINGS, ordered=True))
        got: list[Any] = []
        while len(got) < 10:
            got += member.fetch(10 - len(got), stage.seconds)
        member.give_back([one.receipt for one in got[2:]], 0.0)
        member.acknowledge([one.receipt for one in got[:2]])  # they ended after the stop
    with stage.source(prefetch="100") as other:
        again: list[Any] = []
        while len(again) < 38:
            again += other.fetch(100, stage.seconds)
    assert [one.message.id for one in again] == ids[2:]


def test_a_connection_that_ends_before_an_acknowledgement_is_sent_is_an_outage(stage: Stage):
    class Channel:
        async def basic_ack(self, tag: int, wait: bool) -> None:
            raise Exception  # as aiormq does

    with stage.source() as member:
        member.fetch(1, 0.01)
        receipt = Receipt(Channel(), 1)
        member.source._held.add(receipt)
        with pytest.raises(BrokerUnavailableError, match="closed"):
            member.acknowledge([receipt])
