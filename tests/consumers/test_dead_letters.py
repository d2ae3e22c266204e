"""Dead letters on Valkey: published with the reason, listed, replayed under the same key, discarded."""

from __future__ import annotations

import contextlib
import io
import uuid
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
from msgspec.structs import replace

from twicesafe import AsyncReceiver, Backoff, Outbox, OutboxRelay, Policy, Receiver
from twicesafe import _cli as cli
from twicesafe.consumers import AsyncConsumer, Consumer, DeadLetter, DeadLetters, Letter, Message
from twicesafe.consumers.sources import Received, redis
from twicesafe.consumers.sources.redis import RedisStreamSource
from twicesafe.errors import ConfigurationError, StoreUnavailableError, UsageError
from twicesafe.testing import MemoryBroker
from twicesafe.testing._memory_broker import MemorySource

QUICK = Policy(backoff=Backoff(first=0.001, most=0.01), max_attempts=2)
HOLDING = QUICK.replace(takeover="hold", max_attempts=5)


class Place:
    def __init__(self, server: Any, receiver: Receiver, store: str) -> None:
        # Not counted: pytest's copy of this module, and the one that other tests import, count apart.
        self.stream = f"letters_{uuid.uuid4().hex}"
        self.client = server.client()
        self.base = f"redis://127.0.0.1:{server.port}/0"
        self.url = f"{self.base}?stream={self.stream}&group=billing"
        self.dead_url = f"{self.base}?stream={self.stream}.dead&group=operators"
        self.receiver, self.store = receiver, store

    def send(self, id_: str, key: str = "", body: str = "{}") -> None:
        fields = {"id": id_, "key": key, "topic": "orders", "headers": "{}", "body": body}
        self.client.xadd(self.stream, {name: value for name, value in fields.items() if value})

    def consume(self, handler: Any, **settings: Any) -> Any:
        given = {"receiver": self.receiver, "policy": QUICK, **settings}
        with Consumer.open(self.url, **given) as consumer:
            return consumer.drain(handler, idle=0.1)


@pytest.fixture
def place(valkey: Any, tmp_path: Any) -> Iterator[Place]:
    store = f"sqlite:///{tmp_path}/keys.db"
    with Receiver.open(store) as receiver:
        yield Place(valkey, receiver, store)


def refuse(message: Message) -> None:
    raise ValueError("no such customer")


def hang(message: Message) -> None:
    """With HOLDING, its outcome is unknown."""
    raise TimeoutError


def test_a_dead_letter_says_why_and_keeps_its_id(place: Place) -> None:
    place.send("o-1", key="ann", body='{"cents": 5}')
    report = place.consume(refuse)
    assert (report.dead, report.retried) == (1, 1)
    with DeadLetters.open(place.dead_url) as dead:
        (letter,) = dead.look()
        (again,) = dead.look()
    assert letter == again or letter.id == again.id, "looking changes nothing"
    assert (letter.id, letter.message.key, letter.message.body) == ("o-1", "ann", b'{"cents": 5}')
    assert "2 attempts failed" in letter.reason
    assert "no such customer" in letter.reason
    assert letter.error == "ValueError"
    assert letter.key is not None
    assert place.receiver.record(letter.key).state == "parked"  # type: ignore[union-attr]


def test_a_replay_runs_under_the_same_key_and_frees_its_lane(place: Place) -> None:
    for id_ in ("a-1", "a-2", "b-1"):
        place.send(id_, key=id_[0])
    ran: list[str | None] = []

    def handle(message: Message) -> None:
        if message.id == "a-1":
            raise DeadLetter("not yet")
        ran.append(message.id)

    assert place.consume(handle).dead == 2
    with DeadLetters.open(place.dead_url) as dead:
        assert [one.id for one in dead.look()] == ["a-1", "a-2"]
        done = dead.replay(place.receiver, by="ann", why="fixed")
        assert (done.replayed, done.held) == (2, [])
        assert dead.look() == []
    report = place.consume(lambda message: ran.append(message.id))
    assert (report.ran, report.replayed, report.dead) == (2, 0, 0)
    assert ran == ["b-1", "a-1", "a-2"]


def test_a_replayed_message_that_dies_again_is_a_dead_letter_again(place: Place) -> None:
    place.send("o-1")
    for _ in range(2):
        assert place.consume(refuse).dead == 1
        with DeadLetters.open(place.dead_url) as dead:
            assert dead.replay(place.receiver, by="ann", why="again").replayed == 1
    assert place.consume(refuse).dead == 1


def test_the_dead_letter_of_a_dead_letter_is_replayed_to_it(place: Place) -> None:
    """Of a consumer that reads the dead letters, for alerts: the first one kept neither its reason nor its way back."""
    place.send("o-1", key="ann")
    place.consume(refuse)
    with DeadLetters.open(place.dead_url) as dead:
        (first,) = dead.look()
    pager = f"{place.base}?stream={place.stream}.dead&group=pager"
    with Consumer.open(pager, receiver=place.receiver, policy=QUICK) as consumer:
        assert consumer.drain(refuse, idle=0.1).dead == 1
    twice = f"{place.base}?stream={place.stream}.dead.dead&group=operators"
    with DeadLetters.open(twice) as dead:
        assert dead.replay(place.receiver, by="ann", why="the pager is back").replayed == 1
    place.client.xtrim(f"{place.stream}.dead", maxlen=1, approximate=False)
    with DeadLetters.open(place.dead_url) as dead:
        (again,) = dead.look()
        assert again.message.headers == first.message.headers
        assert dead.replay(place.receiver, by="ann", why="it exists now").replayed == 1
    assert place.consume(lambda message: None).ran == 1


def test_a_dead_letter_that_comes_back_by_other_means_keeps_no_old_reasons(place: Place) -> None:
    """A shovel, for example, and its key is still parked."""
    place.send("o-1", key="ann")
    place.consume(refuse)
    ((_, fields),) = place.client.xrange(f"{place.stream}.dead")
    place.client.xadd(place.stream, fields)
    place.consume(refuse, order="none")
    place.client.xtrim(f"{place.stream}.dead", maxlen=1, approximate=False)
    with DeadLetters.open(place.dead_url) as dead:
        (letter,) = dead.look()
    assert not any(name.count("twicesafe-dead-") > 1 for name in letter.message.headers)
    assert letter.lane is None  # it was the first one's


def test_a_held_key_is_not_replayed(place: Place) -> None:
    place.send("o-1")
    report = place.consume(hang, policy=HOLDING)
    assert report.dead == 1
    with DeadLetters.open(place.dead_url) as dead:
        assert dead.replay(place.receiver, by="ann", why="x").held == ["o-1"]
        assert len(dead.look()) == 1
        who = {"by": "ann", "why": "a test"}
        done = dead.discard(place.receiver, **who, chosen=lambda one: one.id == "o-1")
        assert (done.discarded, done.unaudited) == (1, [])
        assert dead.look() == []
    assert [(e.action, e.by) for e in place.receiver.audit_log()] == [("discard", "ann")]


def test_a_letter_is_not_removed_before_its_discard_is_recorded(place: Place) -> None:
    place.send("o-1")
    assert place.consume(refuse).dead == 1

    def down(flow: Any) -> Any:
        raise StoreUnavailableError("the store is away")

    with DeadLetters.open(place.dead_url) as dead:
        who = {"by": "ann", "why": "a test", "chosen": lambda one: True}
        with pytest.raises(StoreUnavailableError):
            dead.discard(place.receiver, **who, run=down)  # type: ignore[arg-type]
        assert [one.id for one in dead.look()] == ["o-1"]


def test_a_lane_continues_when_its_last_letter_was_discarded(place: Place) -> None:
    def discard(id_: str) -> None:
        with DeadLetters.open(place.dead_url) as dead:
            who = {"by": "ann", "why": "a test message"}
            assert dead.discard(place.receiver, **who, chosen=lambda one: one.id == id_).discarded

    for id_ in ("a-1", "a-2"):
        place.send(id_, key="ann")
    assert place.consume(refuse).dead == 2
    discard("a-1")
    place.send("a-3", key="ann")
    assert place.consume(lambda message: None).dead == 1, "a-2 is still before it"
    discard("a-2")
    discard("a-3")
    place.send("a-4", key="ann")
    assert place.consume(lambda message: None).ran == 1


def test_a_replay_spares_a_run_that_another_operator_began(place: Place) -> None:
    """Its key was parked when the replay read it, and runs by the time that it is released."""
    place.send("o-1")
    assert place.consume(refuse).dead == 1
    with DeadLetters.open(place.dead_url) as dead:
        (letter,) = dead.look()
        assert letter.key is not None
        with contextlib.ExitStack() as stack:

            def run(flow: Any) -> Any:
                found = place.receiver._runtime.run(flow)
                if found is not None and found.key == letter.key:  # it was just read
                    place.receiver.release(letter.key, by="ben", why="first")
                    stack.enter_context(place.receiver.claim(letter.key)).complete("mine")
                return found

            assert dead.replay(place.receiver, by="ann", why="x", run=run).replayed == 1
    assert [entry.by for entry in place.receiver.audit(letter.key)] == ["ben"]
    assert place.receiver.record(letter.key).state == "completed"  # type: ignore[union-attr]


def test_the_outboxs_messages_arrive_with_key_and_id(place: Place, tmp_path: Any) -> None:
    import sqlite3

    path = tmp_path / "shop.db"
    with Outbox.open(f"sqlite:///{path}") as outbox:
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        sent = outbox.add(connection, topic="orders", body={"cents": 7}, key="ann")
        connection.execute("COMMIT")
        connection.close()
    to = f"{place.base}?stream={place.stream}"
    with OutboxRelay.open(f"sqlite:///{path}", to) as relay:
        relay.stop()
        relay.drain()
    seen: list[Message] = []
    place.consume(seen.append)
    assert [(one.id, one.key, one.json()) for one in seen] == [(sent, "ann", {"cents": 7})]


def test_a_dead_message_of_one_stream_parks_no_lane_of_another(place: Place, valkey: Any) -> None:
    """One outbox topic may be sent to several streams, and one group name be used for all."""
    place.send("eu-1", key="ann")
    assert place.consume(refuse).dead == 1
    other = Place(valkey, place.receiver, place.store)
    other.send("us-1", key="ann")
    ran: list[str | None] = []
    report = other.consume(lambda message: ran.append(message.id))
    assert (report.dead, ran) == (0, ["us-1"])


class Narrow(MemorySource):
    """A broker that lets us hold three messages at a time."""

    most_held = 3

    def fetch(self, most: int, seconds: float) -> list[Received]:
        room = self.most_held - len(self.held)
        return list(super().fetch(min(most, room), min(seconds, 0.05))) if room else []


def letters(count: int) -> MemoryBroker:
    broker = MemoryBroker()
    with Receiver.open("memory://") as receiver:
        for number in range(count):
            broker.send("orders", b"{}", id=f"o-{number}")
        with Consumer(broker.source("orders"), receiver=receiver, policy=QUICK) as consumer:
            assert consumer.drain(refuse, idle=0.05).dead == count
    return broker


def test_all_letters_are_replayed_although_few_may_be_held(place: Place) -> None:
    broker = letters(10)
    with DeadLetters(Narrow(broker, "orders.dead")) as dead:
        assert dead.replay(place.receiver, by="ann", why="fixed").replayed == 10
    assert len(broker.bodies("orders")) == 10
    assert broker.bodies("orders.dead") == []


def test_all_letters_are_discarded_although_few_may_be_held(place: Place) -> None:
    broker = letters(10)
    with DeadLetters(Narrow(broker, "orders.dead")) as dead:
        done = dead.discard(
            place.receiver, by="ann", why="a test", chosen=lambda letter: letter.id != "o-1"
        )
        assert done.discarded == 9
        assert len(done.unaudited) == 9, "their keys have no record here"
        assert [letter.id for letter in dead.look()] == ["o-1"]


def test_letters_that_stay_and_fill_the_room_end_a_replay(place: Place) -> None:
    with DeadLetters(Narrow(letters(5), "orders.dead")) as dead:
        done = dead.replay(place.receiver, by="a", why="b", chosen=lambda letter: letter.id == "-")
        assert done.replayed == 0
        assert len(dead.look()) == 3


def test_a_message_that_dies_again_is_replayed_once(place: Place) -> None:
    """It is a new dead letter, and the replay would never end."""
    broker = letters(7)

    class Dying(Narrow):
        def acknowledge(self, receipts: Any) -> None:
            super().acknowledge(receipts)
            again = self.broker.queues["orders"].pop()
            self.broker.queues["orders.dead"].append(replace(again, topic="orders.dead"))

    with DeadLetters(Dying(broker, "orders.dead")) as dead:
        assert dead.replay(place.receiver, by="ann", why="fixed").replayed == 7


# --- the order of a lane -------------------------------------------------------------------------------


def test_a_letter_that_dies_again_in_a_replay_keeps_the_later_ones_behind_it(place: Place) -> None:
    for number in (1, 2, 3):
        place.send(f"o-{number}", key="ann")
    place.consume(refuse)
    ran: list[str] = []

    def handle(message: Message) -> None:
        if message.id == "o-1":
            raise DeadLetter("still no such customer")
        ran.append(message.id or "")

    def chosen(letter: Letter) -> bool:
        """Before o-2 is replayed, o-1 has come back and died again."""
        if letter.id == "o-2":
            place.consume(handle)
        return True

    with DeadLetters.open(place.dead_url) as dead:
        assert dead.replay(place.receiver, by="ana", why="test", chosen=chosen).replayed == 3
        place.consume(handle)
        assert ran == []
        assert [letter.id for letter in dead.look()] == ["o-1", "o-2", "o-3"]


def test_letters_behind_one_with_an_unknown_outcome_are_left(place: Place) -> None:
    place.send("o-1", key="ann")
    place.consume(hang, policy=HOLDING)
    place.send("o-2", key="ann")
    place.send("o-3", key="bob")
    assert place.consume(refuse).dead == 2
    with DeadLetters.open(place.dead_url) as dead:
        done = dead.replay(place.receiver, by="ana", why="test")
        assert (done.replayed, done.held) == (1, ["o-1", "o-2"])
        assert [letter.id for letter in dead.look()] == ["o-1", "o-2"]


# --- messages near the broker's size limit ------------------------------------------------------------


class SmallLimit:
    """A publisher whose broker has a size limit."""

    batch = concurrency = 1

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.tried = 0
        self.taken: list[Any] = []

    def publish(self, messages: Any) -> list[Exception | None]:
        (message,) = messages
        self.tried += 1
        size = len(message.body) + sum(len(n) + len(v) for n, v in message.headers.items())
        if size > self.limit:
            return [RuntimeError(f"{size} bytes are too much")]
        self.taken.append(message)
        return [None]

    def close(self) -> None:
        pass


def refuse_at_length(message: Message) -> None:
    raise DeadLetter("no such customer " * 100)


@pytest.mark.parametrize("limit", [100_000, 1000])
def test_a_dead_letter_that_is_too_large_is_brief(place: Place, limit: int) -> None:
    narrow = SmallLimit(limit)
    place.send("o-1", key="ann")
    assert place.consume(refuse_at_length, dead_letter=narrow).dead == 1
    (sent,) = narrow.taken
    headers = {name.removeprefix("twicesafe-dead-"): text for name, text in sent.headers.items()}
    needed = {"reason", "topic", "place", "broker", "key", "lane"}
    if limit > 1000:
        assert headers.keys() == needed | {"error", "position", "consumer"}
        assert len(headers["reason"]) > 1000
    else:
        assert headers.keys() == needed
        assert headers["reason"].startswith("no such customer")
        assert len(headers["reason"]) == 80


async def test_an_async_consumer_does_the_same(tmp_path: Any) -> None:
    broker, narrow = MemoryBroker(), SmallLimit(1000)
    broker.send("orders", {}, id="o-1", key="ann")

    async def handle(message: Message) -> None:
        refuse_at_length(message)

    async with AsyncReceiver.open(f"sqlite:///{tmp_path}/keys.db") as receiver:
        consumer = AsyncConsumer(broker.source("orders"), receiver=receiver, dead_letter=narrow)
        async with consumer:
            assert (await consumer.drain(handle, idle=0.1)).dead == 1
    assert narrow.tried == 2


def test_a_letter_of_another_broker_is_not_sent_where_no_consumer_reads(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.send("o-1")
    with monkeypatch.context() as patched:
        patched.setattr(RedisStreamSource, "broker", "Kafka")
        assert place.consume(refuse).dead == 1
    with DeadLetters.open(place.dead_url) as dead:
        with pytest.raises(UsageError, match="came from Kafka, and is on Redis"):
            dead.replay(place.receiver, by="ann", why="x")
        assert [letter.id for letter in dead.look()] == ["o-1"]
        there = f"{place.base}?stream={place.stream}.there"
        assert dead.replay(place.receiver, by="ann", why="x", to=there).replayed == 1
    assert place.client.xlen(f"{place.stream}.there") == 1


def test_a_look_creates_neither_the_stream_nor_the_group(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = f"{place.stream}.dead"
    with DeadLetters.open(place.dead_url) as letters:
        for look in (letters.look, lambda: letters.replay(place.receiver, by="ann", why="x")):
            with pytest.raises(ConfigurationError, match=f"no such stream in Redis: {dead}"):
                look()
    assert not place.client.exists(dead)
    for id_ in ("o-1", "o-2"):
        place.send(id_)
        place.consume(refuse)
    monkeypatch.setattr(redis, "PAGE", 1)
    with DeadLetters.open(place.dead_url) as letters:
        assert [one.id for one in letters.look()] == ["o-1", "o-2"]
        assert [one.id for one in letters.look(1)] == ["o-1"]
        assert place.client.xinfo_groups(dead) == []
        by_peek = letters.look()
        assert letters.discard(
            place.receiver, by="ann", why="x", chosen=lambda one: one.id == "o-1"
        )
        assert place.client.xinfo_groups(dead), "an action needs the group"
        (left,) = letters.look()
    assert replace(left.message, deliveries=0) == by_peek[1].message


def test_the_command_says_that_there_is_no_such_stream(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["dead-letters", "list", "--from", place.dead_url]) == 2
    assert "no such stream" in capsys.readouterr().err
    assert not place.client.exists(f"{place.stream}.dead")


@pytest.mark.parametrize("odd", ["bücher {}", "{} ", '"{}"', "a\n{}"])
def test_a_replay_finds_a_place_with_an_odd_name(place: Place, odd: str) -> None:
    place.stream = odd.format(place.stream)
    query = {"stream": place.stream, "group": "billing"}
    place.url = f"{place.base}?{urlencode(query)}"
    place.dead_url = f"{place.base}?{urlencode(query | {'stream': place.stream + '.dead'})}"
    place.send("o-1")
    place.consume(refuse)
    with DeadLetters.open(place.dead_url) as dead:
        (letter,) = dead.look()
        assert letter.place == place.stream
        dead.replay(place.receiver, by="ann", why="fixed")
    assert place.consume(lambda message: None).ran == 1


def test_the_reason_is_in_the_words_of_the_error(place: Place) -> None:
    def refuse_in_german(message: Message) -> None:
        raise DeadLetter("Überweisung unmöglich,\nKonto fehlt")

    place.send("o-1")
    place.consume(refuse_in_german)
    with DeadLetters.open(place.dead_url) as dead:
        (letter,) = dead.look()
    assert letter.reason == "Überweisung unmöglich, Konto fehlt"


class Answering(io.StringIO):
    """A terminal: while its question stands on the screen, something happens."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        super().__init__("y\n")
        self._meanwhile = meanwhile

    def isatty(self) -> bool:
        return True

    def readline(self, *given: Any) -> str:
        self._meanwhile()
        return super().readline(*given)


@pytest.mark.parametrize("verb", ["replay", "discard"])
def test_a_letter_that_comes_during_the_question_is_left(
    place: Place, verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def die(id_: str) -> None:
        place.send(id_)
        place.consume(refuse)

    die("o-1")
    monkeypatch.setattr("sys.stdin", Answering(lambda: die("o-2")))
    given = ["--from", place.dead_url, "--store", place.store, "--by", "ann", "--why", "x"]
    assert cli.main(["dead-letters", verb, "--all", *given]) == 0
    assert f"{verb} 1 dead letter?" in capsys.readouterr().err
    with DeadLetters.open(place.dead_url) as dead:
        assert [one.id for one in dead.look()] == ["o-2"]
