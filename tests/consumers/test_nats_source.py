"""NATS JetStream as a source, on a real server."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import urlencode

import pytest
from msgspec.structs import replace
from nats.js.api import AckPolicy, ConsumerConfig
from nats.js.errors import NotFoundError

from lab.field.proxy import Fault
from tests.consumers.proxied import BehindProxies, problems
from tests.polling import until
from twicesafe._core.consuming.message import key_of
from twicesafe.consumers import DeadLetters
from twicesafe.consumers.sources.nats import JetStreamSource
from twicesafe.errors import BrokerUnavailableError, ConfigurationError
from twicesafe.outbox.publishers import Message as Outgoing
from twicesafe.outbox.publishers.nats import JetStreamPublisher
from twicesafe.testing import ConsumerConformance
from twicesafe.testing._sources import SETTINGS, BlockingSource

_numbers = itertools.count(1)


class Streams(BehindProxies):
    """A stream and a durable; its sources pull from the durable."""

    def use(self, server: Any) -> None:
        self.port, self.url = server.port, server.url
        self.stream = f"SOURCE{next(_numbers)}_{os.getpid()}"
        self.ask(lambda js: js.add_stream(name=self.stream, subjects=[f"{self.stream}.>"]))

    def ask(self, question: Callable[[Any], Awaitable[Any]]) -> Any:
        import nats

        async def asked() -> Any:
            connection = await nats.connect(self.url)
            try:
                return await question(connection.jetstream())
            finally:
                await connection.close()

        return asyncio.run(asked())

    def open_source(self, **options: str) -> Any:
        chosen = {"stream": self.stream, "durable": "billing", "ack_wait": "1s", "timeout": "1"}
        query = urlencode(chosen | options)
        return self.through_proxy(
            lambda port: JetStreamSource.open(f"nats://127.0.0.1:{port}?{query}")
        )

    def publisher_url(self) -> str:
        return self.url

    def topic(self) -> str:
        return f"{self.stream}.orders"

    def durable(self) -> Any:
        return self.ask(lambda js: js.consumer_info(self.stream, "billing"))

    def unsettled(self) -> int:
        durable = self.durable()
        return int(durable.num_pending + durable.num_ack_pending)

    def dead_letters(self) -> list[str]:
        async def all_of_it(js: Any) -> list[str]:
            last = (await js.stream_info(f"{self.stream}_DEAD")).state.last_seq
            got = [await js.get_msg(f"{self.stream}_DEAD", seq) for seq in range(1, last + 1)]
            return [message.headers["Twicesafe-Id"] for message in got]

        return self.ask(all_of_it)  # type: ignore[no-any-return]

    def own_broker(self) -> Callable[[], object]:
        server = self.launch("nats")
        self.use(server)
        return server.restart  # type: ignore[no-any-return]


class TestJetStream(Streams, ConsumerConformance):
    @pytest.fixture(autouse=True)
    def _broker(self, _proxies: None, nats: Any) -> None:
        self.use(nats)


class Stage(Streams, ConsumerConformance):
    """For the tests below, which are not rules of all sources."""

    @contextmanager
    def source(self, **options: str) -> Iterator[BlockingSource]:
        member = BlockingSource(self.open_source(**options))
        try:
            yield member
        finally:
            member.end()

    def create(self, **config: Any) -> None:
        """The durable, before a source finds it."""
        config = {"ack_policy": AckPolicy.EXPLICIT} | config
        wish = ConsumerConfig(durable_name="billing", **config)
        self.ask(lambda js: js.add_consumer(self.stream, wish))


Stage.__test__ = False  # type: ignore[attr-defined]


@pytest.fixture
def stage(nats: Any) -> Iterator[Stage]:
    made = Stage()
    with ExitStack() as made.stack:
        made.proxies = {}
        made.use(nats)
        yield made


def test_a_message_of_others_has_its_position_as_its_key(stage: Stage):
    positions = []
    for _ in range(2):  # the second stream has the same name, and its numbers start at 1 again
        with stage.source() as member:
            stage.ask(lambda js: js.publish(f"{stage.stream}.a", b"{}", headers={"X-Name": "x"}))
            (got,) = member.fetch(1, stage.seconds)
            assert got.message.id is None
            assert got.message.headers == {"x-name": "x"}
            positions.append(got.message.position)
            assert key_of(got.message) == f"position:{got.message.position}"
            member.give_back([got.receipt], 0)
            (again,) = member.fetch(1, stage.seconds)
            assert again.message.position == got.message.position
        stage.ask(lambda js: js.delete_stream(stage.stream))
        stage.ask(lambda js: js.add_stream(name=stage.stream, subjects=[f"{stage.stream}.>"]))
    assert all(position.startswith(f"{stage.stream}/1@") for position in positions)
    assert len(set(positions)) == 2


def test_a_missing_durable_is_created_as_the_url_says(stage: Stage):
    stage.ask(lambda js: js.publish(f"{stage.stream}.a.old", b""))
    options = {"filter": f"{stage.stream}.a.>", "from": "new", "ack_wait": "7s"}
    with stage.source(**options) as member:
        member.fetch(1, 0)
        config = stage.durable().config
        assert (config.ack_policy, config.ack_wait, config.max_deliver) == ("explicit", 7, -1)
        assert member.source.ack_wait == 7
        stage.ask(lambda js: js.publish(f"{stage.stream}.b.new", b""))
        stage.ask(lambda js: js.publish(f"{stage.stream}.a.new", b""))
        (got,) = member.fetch(10, stage.seconds)
        assert got.message.topic == f"{stage.stream}.a.new"


def test_an_existing_durable_is_used_as_it_is(stage: Stage):
    stage.create(ack_wait=11, max_ack_pending=17)
    with stage.source(ack_wait="3s") as member:
        member.fetch(1, 0)
        assert (member.source.ack_wait, member.source.most_held) == (11, 17)


def test_a_durable_that_allows_no_more_is_no_outage(stage: Stage):
    """Others hold all that may be unsettled. JetStream does not answer ``no_wait`` then."""
    stage.create(max_ack_pending=3)
    ids = [sent.id for sent in stage.send(5)]
    with stage.source() as first, stage.source() as second:
        held = stage.gather(first, *ids[:3])
        for _ in range(2):
            assert list(second.fetch(10, 0.3)) == []
        first.acknowledge([one.receipt for one in held.values()])
        stage.gather(second, *ids[3:])


def test_a_durable_that_limits_requests_is_asked_for_no_more(stage: Stage):
    """It refuses a larger request with status 409, which looked like an outage without end."""
    limits = {"max_batch": 3, "max_expires": 100_000_000}
    config = {"durable_name": "billing", "ack_policy": "explicit", "ack_wait": 10_000_000_000}
    request = {"stream_name": stage.stream, "config": config | limits}
    subject = f"$JS.API.CONSUMER.DURABLE.CREATE.{stage.stream}.billing"
    stage.ask(lambda js: js._nc.request(subject, json.dumps(request).encode()))
    ids = [sent.id for sent in stage.send(5)]
    with stage.source() as member:
        first = member.fetch(10, stage.seconds)
        held = [one.message.id for one in (*first, *member.fetch(10, stage.seconds))]
        assert (len(first), held) == (3, ids)
        assert list(member.fetch(10, 0.3)) == []
        (found,) = problems(member, SETTINGS)
        assert "at most 3 messages, fewer than batch=" in found


def test_an_operator_may_hold_all_messages_of_a_new_durable(stage: Stage):
    with stage.source() as member:
        member.source.hold_many()
        member.fetch(1, 0)
        assert member.source.most_held > 1000


def test_a_look_at_dead_letters_creates_no_durable_and_no_stream(stage: Stage):
    ids = [sent.id for sent in stage.send(3)]
    url = f"{stage.url}?stream={stage.stream}&durable=billing"
    with DeadLetters.open(url) as dead:
        letters = dead.look(2)
        with pytest.raises(NotFoundError):
            stage.durable()
        assert [one.id for one in letters] == ids[:2]
        assert [one.id for one in dead.look()] == ids
    with DeadLetters.open(f"{url}&filter=no.such") as dead:
        assert dead.look() == []
    with stage.source() as member:
        (first,) = member.fetch(1, stage.seconds)
    shown = letters[0].message
    assert replace(first.message, deliveries=0, position=shown.position) == shown
    missing = url.replace(stage.stream, "NOWHERE")
    with (
        DeadLetters.open(missing) as dead,
        pytest.raises(BrokerUnavailableError, match="no such JetStream stream: NOWHERE"),
    ):
        dead.look()


@pytest.mark.parametrize("value", [b"caf\xc3\xa9 \xe2\x82\xac", b"\xff"])
def test_a_header_that_is_not_ascii_is_the_same_in_a_look_and_in_a_delivery(
    stage: Stage, value: bytes
):
    """nats-py reads the headers of a stored message with another parser, which does not return text."""
    name = value.decode(errors="surrogateescape")
    headers = {"Nats-Msg-Id": f"{name}-1", "X-Name": name, "Twicesafe-Key": name}
    lines = "".join(f"{field}: {text}\r\n" for field, text in headers.items())
    head = b"NATS/1.0\r\n" + lines.encode(errors="surrogateescape") + b"\r\n"
    with socket.create_connection(("127.0.0.1", stage.port), 60) as plain:
        plain.sendall(b'CONNECT {"verbose":false,"headers":true}\r\n')
        plain.sendall(b"HPUB %s.a %d %d\r\n" % (stage.stream.encode(), len(head), len(head) + 2))
        plain.sendall(head + b"{}\r\nPING\r\n")
        until(lambda: b"PONG" in plain.recv(10_000))
    with DeadLetters.open(f"{stage.url}?stream={stage.stream}&durable=billing") as dead:
        (shown,) = dead.look()
    with stage.source() as member:
        (delivered,) = member.fetch(1, stage.seconds)
    expected = value.decode(errors="replace")
    assert shown.message.headers == delivered.message.headers == {"x-name": expected}
    assert shown.id == delivered.message.id == f"{expected}-1"
    assert shown.message.key == delivered.message.key == expected


def test_a_dead_letter_without_an_id_has_the_same_name_in_every_look(stage: Stage):
    for _ in range(5):
        stage.ask(lambda js: js.publish(f"{stage.stream}.a", b"{}"))
    with DeadLetters.open(f"{stage.url}?stream={stage.stream}&durable=billing") as dead:
        first, second = dead.look(), dead.look()
    assert len(first) == 5
    assert [one.id for one in first] == [one.id for one in second]


def test_the_shortest_back_off_of_a_durable_is_its_ack_wait(stage: Stage):
    stage.create(backoff=[2, 10], max_deliver=5)
    with stage.source() as member:
        member.fetch(1, 0)
        assert member.source.ack_wait == 2


@pytest.mark.parametrize(
    "config, reason",
    [
        ({"deliver_subject": "somewhere"}, "push"),
        ({"ack_policy": AckPolicy.ALL}, "ack all"),
        ({"ack_policy": AckPolicy.NONE}, "ack none"),
    ],
)
def test_a_durable_that_would_lose_messages_is_refused(
    stage: Stage, config: dict[str, Any], reason: str
):
    stage.create(**config)
    with stage.source() as member, pytest.raises(ConfigurationError, match=reason):
        member.fetch(1, 0)


def test_a_missing_stream_is_an_outage_until_it_is_there(stage: Stage):
    stage.ask(lambda js: js.delete_stream(stage.stream))
    with stage.source() as member:
        with pytest.raises(
            BrokerUnavailableError, match=f"no such JetStream stream: {stage.stream}"
        ):
            member.fetch(1, 0)
        stage.ask(lambda js: js.add_stream(name=stage.stream, subjects=[f"{stage.stream}.>"]))
        (sent,) = stage.send()
        stage.gather(member, sent.id)


def test_receipts_of_a_durable_that_is_gone_are_void(stage: Stage):
    """The durable that replaces it delivers the same messages, under the same subjects."""
    with stage.source(ack_wait="1h") as member:
        (sent,) = stage.send()
        (old,) = stage.gather(member, sent.id).values()
        stage.ask(lambda js: js.delete_consumer(stage.stream, "billing"))
        with pytest.raises(BrokerUnavailableError, match="the durable no longer exists"):
            member.acknowledge([old.receipt])
        (new,) = stage.gather(member, sent.id).values()
        assert new.message.deliveries == 1
        assert new.receipt.subject == old.receipt.subject
        member.acknowledge([old.receipt])
        member.give_back([old.receipt], 0)
        assert stage.unsettled() == 1
        member.acknowledge([new.receipt])
        assert stage.unsettled() == 0


def test_an_acknowledgement_that_comes_too_late_is_not_sent(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
):
    """The server may have redelivered the message, and would count it for that delivery."""
    with stage.source(ack_wait="1h") as member:
        ids = [sent.id for sent in stage.send(2)]
        got = stage.gather(member, *ids)
        late, extended = (got[id_].receipt for id_ in ids)
        asked, pass_on = time.monotonic, 0.0
        monkeypatch.setattr("time.monotonic", lambda: asked() + pass_on)
        pass_on = 0.8 * 3600
        member.extend([extended])
        pass_on = 0.95 * 3600
        member.acknowledge([late, extended])
        assert stage.durable().num_ack_pending == 1
        member.give_back([late], 0)
        member.acknowledge([late])
        assert stage.durable().num_ack_pending == 1


def test_a_cancelled_fetch_gives_back_what_came(stage: Stage, monkeypatch: pytest.MonkeyPatch):
    with stage.source(ack_wait="1h", timeout="30") as member:
        (sent,) = stage.send()
        with monkeypatch.context() as patched:
            patched.setattr(
                "twicesafe.consumers.sources._jetstream.PullReplies._end", lambda _: None
            )
            asking = asyncio.run_coroutine_threadsafe(member.source.fetch(10, 20), member.loop)
            until(lambda: (request := member.source._request) and request.messages)
            asking.cancel()
        (again,) = stage.gather(member, sent.id).values()
        assert again.message.deliveries == 2
        member.acknowledge([again.receipt])


def test_a_fetch_that_waits_notices_that_the_connection_is_gone(stage: Stage):
    with stage.source(ack_wait="1h", timeout="250") as member:
        member.fetch(1, 0)
        asking = asyncio.run_coroutine_threadsafe(member.source.fetch(10, 250), member.loop)
        until(lambda: member.source._request is not None)
        stage.hang_up()
        with pytest.raises(BrokerUnavailableError):
            asking.result(stage.seconds)


def test_the_confirmation_of_the_last_acknowledgement_is_one_of_all(stage: Stage):
    with stage.source(ack_wait="60s") as member:
        for _ in range(3):
            stage.send(100)
            found = member.fetch(100, stage.seconds)
            member.acknowledge([one.receipt for one in found])
            assert (len(found), stage.unsettled()) == (100, 0)
            assert member.source._valid_until == {}


def test_a_lost_confirmation_is_an_outage_and_the_receipt_stays_valid(stage: Stage):
    with stage.source(ack_wait="1h") as member:
        (sent,) = stage.send()
        (got,) = stage.gather(member, sent.id).values()
        stage.proxies[id(member.source)].arm(Fault("reply", 0, "silence"))
        with pytest.raises(BrokerUnavailableError, match="acknowledge"):
            member.acknowledge([got.receipt])
        member.acknowledge([got.receipt])
        assert stage.unsettled() == 0
        assert member.source._valid_until == {}  # what is settled takes no memory


def test_the_dead_stream_stays_as_it_is_if_it_exists(stage: Stage):
    subject = f"dead.{stage.stream}.>"
    stage.ask(
        lambda js: js.add_stream(name=f"{stage.stream}_DEAD", subjects=[subject], max_msgs=77)
    )
    with stage.source() as member:
        member.prepare_dead_letters()
    info = stage.ask(lambda js: js.stream_info(f"{stage.stream}_DEAD"))
    assert (info.config.max_msgs, info.config.subjects) == (77, [subject])


@pytest.mark.parametrize(
    "durable, terms, problem",
    [
        ({"ack_wait": 60}, {}, "although its lease ends after 30 s"),
        ({"max_deliver": 8}, {}, "at most 8 times"),
        ({"max_ack_pending": 12}, {}, "may hold 12 messages"),
        ({}, {"retention": 60.0}, "the duplicate window of"),
    ],
)
def test_check_says_what_will_go_wrong(
    stage: Stage, durable: dict[str, Any], terms: dict[str, Any], problem: str
):
    stage.create(**durable)
    with stage.source() as member:
        (found,) = problems(member, replace(SETTINGS, **terms))
        assert problem in found


def test_check_says_that_the_stream_forgets_too_soon(stage: Stage):
    subjects = [f"{stage.stream}.>"]
    stage.ask(
        lambda js: js.update_stream(
            name=stage.stream, subjects=subjects, max_age=100, duplicate_window=50
        )
    )
    with stage.source() as member:
        (found,) = problems(member, replace(SETTINGS, longest_backoff=60))
        assert "deletes messages after 100 s" in found


@pytest.mark.parametrize(
    "query, remedy",
    [
        ("stream=s", "add durable="),
        ("durable=d", "add stream="),
        ("stream=s&durable=d&from=7", "use all or new"),
        ("stream=s&durable=d.e", "option durable='d.e'"),
        ("stream=a b&durable=d", "option stream='a b'"),
    ],
)
def test_a_url_that_cannot_be_used(query: str, remedy: str):
    with pytest.raises(ConfigurationError, match=remedy):
        JetStreamSource.open(f"nats://127.0.0.1:1?{query}")


@pytest.mark.parametrize("kind", ["source", "publisher"])
async def test_no_credentials_are_sent_in_plain_text_to_a_server_that_should_have_tls(kind: str):
    """nats-py uses TLS only if the server asks for it."""
    sent, has_ended = bytearray(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        info = b'{"server_id":"x","version":"2.10.0","max_payload":1000,"tls_available":true}'
        writer.write(b"INFO " + info + b"\r\n")
        sent.extend(await reader.read())
        writer.close()
        await writer.wait_closed()
        has_ended.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    url = f"tls+nats://ann:secret@127.0.0.1:{port}?timeout=2"
    opened: Any
    if kind == "source":
        opened = JetStreamSource.open(f"{url}&stream=s&durable=d")
        attempt = opened.fetch(1, 0.1)
    else:
        opened = JetStreamPublisher.open(url)
        attempt = opened.publish([Outgoing("1", "orders", b"", None, {})])
    with pytest.raises(BrokerUnavailableError, match="NoTlsError"):
        await attempt
    await opened.close()
    async with asyncio.timeout(60):
        await has_ended.wait()
    server.close()
    await server.wait_closed()
    assert bytes(sent) == b""


@pytest.mark.parametrize("scheme", ["nats", "tls+nats"])
def test_dead_letters_go_to_the_same_server(scheme: str):
    source = JetStreamSource.open(f"{scheme}://me:word@host:4222?stream=S&durable=d")
    assert source.dead_url == f"{scheme}://me:word@host:4222?deduplicate=false"
