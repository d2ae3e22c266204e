"""The relay on real engines, in both mode: nothing lost, nothing skipped, order kept per key."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg
import pytest

from tests.outbox.stage import AsyncBroker, Broker, RelayMode, begin
from tests.polling import until
from twicesafe import (
    Backoff,
    BrokerUnavailableError,
    ConfigurationError,
    StoreUnavailableError,
    UsageError,
)
from twicesafe._core.outbox.requests import Heartbeat, Message
from twicesafe.events import BrokerFailed, Event, LaneParked, PublishFailed, Relayed
from twicesafe.outbox import AsyncOutbox, Outbox, OutboxRelay

AT_ONCE = Backoff(first=0, jitter=0)

Put = Callable[..., list[str]]


def test_everything_once_in_order_per_key(
    mode: RelayMode, outbox: Outbox, put: Put, broker: Broker
):
    for turn in range(30):
        put(f"a{turn}", key="a")
        put(f"b{turn}", key="b")
        put(f"-{turn}")
    relay = mode.relay(broker, batch=7)
    assert relay.drain() == 90
    for key in "ab":
        assert [b for b in broker.bodies if b[0] == key] == [f"{key}{n}" for n in range(30)]
    assert sorted(b for b in broker.bodies if b[0] == "-") == sorted(f"-{n}" for n in range(30))
    assert outbox.depth().pending == 0
    assert relay.drain() == 0


def test_a_publisher_of_the_other_mode(mode: RelayMode, put: Put):
    broker = AsyncBroker() if mode.name == "sync" else Broker()
    put("1", "2", key="k")
    assert mode.relay(broker).drain() == 2
    assert broker.bodies == ["1", "2"]


def test_a_function_gets_nothing_behind_its_failure(mode: RelayMode, outbox: Outbox, put: Put):
    seen: list[str] = []

    def send(message: Message) -> None:
        seen.append(message.body.decode())
        if message.body == b"bad":
            raise ValueError("no")

    put("1", "bad", "behind", key="k1")
    put("other", key="k2")
    assert mode.relay(send, backoff=Backoff(first=3600)).drain() == 2
    assert sorted(seen) == ["1", "bad", "other"]
    assert outbox.depth().pending == 2


def test_a_function_as_publisher(mode: RelayMode, put: Put):
    got: list[str] = []

    def send(message: Message) -> None:
        got.append(message.body.decode())

    async def send_async(message: Message) -> None:
        got.append(message.body.decode())

    put("1", "2", key="k")
    assert mode.relay(send if mode.name == "sync" else send_async).drain() == 2
    assert got == ["1", "2"]


def test_an_object_with_an_async_call_is_awaited(mode: RelayMode, put: Put):
    got: list[str] = []

    class Sender:
        async def __call__(self, message: Message) -> None:
            got.append(message.body.decode())

    put("1", "2", key="k")
    assert mode.relay(functools.partial(Sender())).drain() == 2
    assert got == ["1", "2"]


def test_a_function_whose_work_has_not_run_publishes_nothing(
    mode: RelayMode, outbox: Outbox, put: Put
):
    """Their rows would be deleted, and nothing was sent."""

    async def send(_: Message) -> None:
        raise AssertionError("nothing awaits it")

    def send_later(_: Message) -> Iterator[None]:
        yield

    put("1")
    for unsent in (lambda message: [send(message)][0], send_later):
        with pytest.raises(BrokerUnavailableError, match="nothing was sent"):
            mode.relay(unsent).drain()
    assert outbox.depth().pending == 1
    assert outbox.depth().resting_lanes == 0


def test_what_commits_late_is_not_skipped(
    url: str, mode: RelayMode, outbox: Outbox, caller: Callable[[], Any], put: Put, broker: Broker
):
    """A "> last id" poller would lose it: its number is lower than what was published."""
    if url.startswith("sqlite"):
        pytest.skip("SQLite has one writer at a time: no transaction commits late")
    long = caller()
    outbox.add(long, topic="orders", body="late", key="slow")
    outbox.add(long, topic="orders", body="late too")
    put(*[f"{n}" for n in range(20)])
    relay = mode.relay(broker)
    assert relay.drain() == 20
    long.commit()
    assert relay.drain() == 2
    assert {"late", "late too"} <= set(broker.bodies)


def test_a_running_relay_takes_what_comes(mode: RelayMode, put: Put, broker: Broker):
    mode.relay(broker).start()
    for turn in range(5):
        put(f"{turn}", key="k")
        broker.wait_for(turn + 1)
    assert broker.bodies == [f"{turn}" for turn in range(5)]


def test_two_relays_divide_the_lanes(mode: RelayMode, outbox: Outbox, put: Put, broker: Broker):
    """No relay dies, so nothing is repeated; and both have something to do."""
    relays = [mode.relay(broker, lease=3, batch=5).start() for _ in range(2)]
    turn = 0
    until = time.monotonic() + 120
    while not all(relay.published for relay in relays):
        assert time.monotonic() < until, [relay.published for relay in relays]
        for key in range(8):
            put(f"{key}:{turn}", key=f"key {key}")
        turn += 1
        broker.wait_for(8 * turn)
    assert len(broker.got) == 8 * turn
    for key in range(8):
        mine = [b for b in broker.bodies if b.startswith(f"{key}:")]
        assert mine == [f"{key}:{n}" for n in range(turn)]


def test_a_dead_relays_share_goes_on_after_its_lease(
    mode: RelayMode, outbox: Outbox, put: Put, broker: Broker
):
    began = time.monotonic()
    held = outbox.store.outbox.perform(Heartbeat(b"dead", 400))
    assert len(held.slots) == 64
    put("1")
    relay = mode.relay(broker, lease=3)
    relay.start()
    broker.wait_for(1)
    assert time.monotonic() - began > 0.3


# --- messages that are refused ---------------------------------------------------------------------


def test_a_poison_message_parks_its_own_lane(
    mode: RelayMode, outbox: Outbox, put: Put, broker: Broker
):
    broker.refuses = {"bad"}
    seen: list[Event] = []
    put("good", "bad", "behind", key="k")
    relay = mode.relay(broker, max_attempts=3, backoff=AT_ONCE, observers=[seen.append])
    while not outbox.parked():
        relay.drain()
    put("other", key="k2")
    put("later", key="k")
    relay.drain()
    assert broker.bodies == ["good", "other"]
    assert broker.tried.count("bad") == 3
    assert [e.attempt for e in seen if isinstance(e, PublishFailed)] == [1, 2]
    assert [e.attempt for e in seen if isinstance(e, LaneParked)] == [3]
    assert sum(e.count for e in seen if isinstance(e, Relayed)) == 2
    (lane,) = outbox.parked()
    assert (lane.key, lane.topic, lane.attempts, lane.waiting) == ("k", "orders", 3, 3)
    assert "no bad" in lane.error
    depth = outbox.depth()
    assert (depth.pending, depth.parked, depth.parked_lanes) == (0, 3, 1)


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    "error, says",
    [
        (ValueError("no customer \ud800"), "ValueError: no customer ?"),
        (ValueError("no \0 customer"), "ValueError: no   customer"),
        (UnprintableError(), "UnprintableError: "),
    ],
    ids=["surrogate", "nul", "unprintable"],
)
def test_whatever_a_refusal_says_it_is_kept_and_the_others_go(
    mode: RelayMode, outbox: Outbox, put: Put, broker: Broker, error: Exception, says: str
):
    broker.refuses, broker.why = {"bad"}, error
    for body in ("1", "bad", "2"):
        put(body, key=body)
    mode.relay(broker, max_attempts=1).drain()
    assert broker.bodies == ["1", "2"]
    assert [lane.error for lane in outbox.parked()] == [says]
    assert outbox.depth().pending == 0


def test_a_row_that_cannot_be_read_parks_its_own_lane(
    mode: RelayMode, outbox: Outbox, put: Put, broker: Broker, caller: Callable[[], Any]
):
    """It was damaged, or changed by hand. It ended the relay, and every relay after it."""
    put("bad", "behind", key="k")
    put("good", key="others")
    connection = caller()
    cursor = connection.cursor()
    cursor.execute("UPDATE twicesafe_outbox SET headers = '{' WHERE n = 1")
    connection.commit()
    relay = mode.relay(broker, max_attempts=1)
    assert relay.drain() == 1
    assert broker.bodies == ["good"]
    (lane,) = outbox.parked()
    assert (lane.key, lane.waiting) == ("k", 2)
    assert "cannot be read" in lane.error
    begin(connection)
    cursor.execute("UPDATE twicesafe_outbox_parked SET headers = '{}' WHERE n = 1")
    connection.commit()
    outbox.retry(lane.lane, by="ana", why="repaired")
    assert relay.drain() == 2
    assert broker.bodies == ["good", "bad", "behind"]


def parked(mode: RelayMode, outbox: Outbox, put: Put, broker: Broker, **more: Any) -> Any:
    broker.refuses = {"bad"}
    put("bad", "behind", key="k")
    relay = mode.relay(broker, max_attempts=1, **more)
    relay.drain()
    assert len(outbox.parked()) == 1
    return relay


def test_retry_goes_on_from_the_refused_message(
    mode: RelayMode, outbox: Outbox, put: Put, broker: Broker
):
    relay = parked(mode, outbox, put, broker)
    put("later", key="k")
    broker.refuses.clear()
    outbox.retry(outbox.parked()[0].lane, by="ana", why="fixed")
    assert relay.drain() == 3
    assert broker.bodies == ["bad", "behind", "later"]
    assert outbox.parked() == []


def test_skip_goes_on_behind_it_and_keeps_it(
    url: str, mode: RelayMode, outbox: Outbox, put: Put, broker: Broker, caller: Callable[[], Any]
):
    relay = parked(mode, outbox, put, broker)
    outbox.skip(outbox.parked()[0].lane, by="ana", why="never")
    assert relay.drain() == 1
    assert broker.bodies == ["behind"]
    assert outbox.depth().parked == 0
    cursor = caller().cursor()
    cursor.execute("SELECT payload, skipped_by, skipped_why FROM twicesafe_outbox_parked")
    assert [(bytes(b), by, why) for b, by, why in cursor.fetchall()] == [(b"bad", "ana", "never")]


def test_an_operators_mistakes_are_reported(outbox: Outbox):
    with pytest.raises(UsageError, match="is not parked"):
        outbox.retry("00" * 16, by="ana")
    with pytest.raises(UsageError, match="hex"):
        outbox.retry("zz", by="ana")
    with pytest.raises(UsageError, match="by="):
        outbox.skip("00" * 16, by=" ")
    with pytest.raises(UsageError, match="by= must be text"):
        outbox.skip("00" * 16, by="\ud800")
    with pytest.raises(UsageError, match="why= must be text"):
        outbox.retry("00" * 16, by="ana", why="\udcff")
    with pytest.raises(UsageError, match="limit"):
        outbox.parked(0)


def test_a_lane_rests_between_attempts(mode: RelayMode, outbox: Outbox, put: Put, broker: Broker):
    broker.refuses = {"bad"}
    put("bad", "behind", key="k")
    relay = mode.relay(broker, backoff=Backoff(first=60))
    relay.drain()
    put("other", key="k2")
    relay.drain()
    assert broker.tried == ["bad", "other"]
    assert outbox.depth().resting_lanes == 1
    assert outbox.depth().pending == 2


def test_what_was_refused_and_then_taken_is_no_trouble_any_more(
    mode: RelayMode, outbox: Outbox, put: Put, broker: Broker
):
    class Moody(Broker):
        def publish(self, messages: Sequence[Message]) -> list[Exception | None]:
            self.refuses = set() if self.tried else {"bad"}
            return super().publish(messages)

    moody = Moody()
    put("bad", key="k")
    mode.relay(moody, backoff=AT_ONCE).drain()
    assert moody.tried == ["bad", "bad"]
    assert moody.bodies == ["bad"]
    assert outbox.depth().resting_lanes == 0


# --- brokers and stores that fail --------------------------------------------------------------------


def test_while_the_broker_is_away_no_attempt_is_counted(
    mode: RelayMode, outbox: Outbox, put: Put, broker: Broker
):
    broker.away = BrokerUnavailableError("no broker")
    failed = threading.Event()

    def observe(event: Event) -> None:
        if isinstance(event, BrokerFailed):
            failed.set()

    put("1", "2", key="k")
    relay = mode.relay(broker, max_attempts=1, observers=[observe]).start()
    assert failed.wait(60)
    assert outbox.depth().resting_lanes == 0
    broker.away = None
    broker.wait_for(2)
    relay.stop()
    assert broker.bodies == ["1", "2"]
    assert outbox.depth().parked == 0


def test_draining_ends_when_the_broker_is_away(
    mode: RelayMode, outbox: Outbox, put: Put, broker: Broker
):
    put("1", "2", key="k")
    broker.away = BrokerUnavailableError("no broker")
    relay = mode.relay(broker, max_attempts=1)
    with pytest.raises(BrokerUnavailableError, match="no broker"):
        relay.drain()
    assert (outbox.depth().pending, outbox.depth().relays, outbox.parked()) == (2, 0, [])
    broker.away = None
    assert relay.drain() == 2


@pytest.mark.parametrize("op", ["outbox_heartbeat", "outbox_fetch"])
def test_draining_ends_when_the_store_is_away(
    mode: RelayMode, put: Put, broker: Broker, monkeypatch: pytest.MonkeyPatch, op: str
):
    put("1", key="k")
    relay = mode.relay(broker)
    perform = relay.own._port.perform

    def performed(request: Any) -> Any:
        if request.op == op:
            raise StoreUnavailableError("no store")
        return perform(request)

    with monkeypatch.context() as patched:
        patched.setattr(relay.own._port, "perform", performed)
        with pytest.raises(StoreUnavailableError, match="no store"):
            relay.drain()
    assert relay.drain() == 1


def test_tables_are_checked_by_the_first_run_and_after_an_outage(
    mode: RelayMode, put: Put, broker: Broker, monkeypatch: pytest.MonkeyPatch
):
    relay = mode.relay(broker)
    perform, asked = relay.own._port.perform, []

    def performed(request: Any) -> Any:
        asked.append(request.op)
        return perform(request)

    monkeypatch.setattr(relay.own._port, "perform", performed)
    put("1", key="k")
    assert (relay.drain(), asked.count("outbox_prepare")) == (1, 1)
    put("2", key="k")
    assert (relay.drain(), asked.count("outbox_prepare")) == (1, 1)
    put("3", key="k")
    broker.away = BrokerUnavailableError("no broker")
    with pytest.raises(BrokerUnavailableError):
        relay.drain()
    broker.away = None
    assert (relay.drain(), asked.count("outbox_prepare")) == (1, 2)


class Departure(BaseException):
    """Like an exit, but of no known type."""


@pytest.mark.parametrize("kind", [Broker, AsyncBroker])
@pytest.mark.parametrize("error", [asyncio.CancelledError, Departure])
@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_publish_that_was_broken_off_is_tried_again(
    mode: RelayMode,
    outbox: Outbox,
    put: Put,
    kind: type[Broker],
    error: type[BaseException],
    concurrency: int,
):
    broker = kind()
    broker.away = error()
    told: list[str] = []

    def observe(event: Event) -> None:
        if isinstance(event, BrokerFailed):
            told.append(event.error)
            broker.away = None

    put("1", key="k")
    settings = {"concurrency": concurrency, "max_attempts": 1, "observers": [observe]}
    relay = mode.relay(broker, **settings).start()
    broker.wait_for(1)
    relay.stop()
    assert broker.bodies == ["1"]
    assert told == [f"the publisher was interrupted by {error.__name__}"]
    assert (outbox.depth().pending, outbox.parked()) == (0, [])


@pytest.mark.parametrize("kind", [Broker, AsyncBroker])
@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_publisher_that_exits_does_not_end_a_relay_in_a_thread(
    outbox: Outbox, put: Put, kind: type[Broker], concurrency: int
):
    """An exit in a thread is silent: no message would be published, and no event would say so."""
    broker = kind()
    broker.away = SystemExit(3)
    told: list[str] = []

    def observe(event: Event) -> None:
        if isinstance(event, BrokerFailed):
            told.append(event.error)
            broker.away = None

    put("1", key="k")
    relay = OutboxRelay(outbox.store, broker, concurrency=concurrency, observers=[observe]).start()
    broker.wait_for(1)
    relay.close()
    assert told == ["the publisher was interrupted by SystemExit"]
    assert outbox.depth().pending == 0


def test_an_async_function_that_exits_does_not_hang_the_relay(outbox: Outbox, put: Put):
    """asyncio ends the loop of a task that exits; the relay would wait for ever."""
    sent: list[bytes] = []
    arrived = threading.Event()

    async def send(message: Message) -> None:
        if not sent:
            sent.append(b"exit")
            raise SystemExit(3)
        sent.append(message.body)
        arrived.set()

    put("1", key="k")
    relay = OutboxRelay(outbox.store, send).start()
    assert arrived.wait(60)
    relay.close()
    assert sent == [b"exit", b"1"]
    assert outbox.depth().pending == 0


def test_an_exit_in_the_main_thread_ends_the_program(outbox: Outbox, put: Put, broker: Broker):
    broker.away = SystemExit(3)
    put("1", key="k")
    with pytest.raises(SystemExit):
        OutboxRelay(outbox.store, broker).drain()
    assert outbox.depth().pending == 1


@pytest.mark.parametrize("answers", [[True], ["sent"], "x", [ValueError], [KeyboardInterrupt()]])
def test_the_error_for_other_answers_says_what_to_return(
    mode: RelayMode, outbox: Outbox, put: Put, answers: Any
):
    class Odd(Broker):
        def publish(self, messages: Sequence[Message]) -> Any:
            return answers

    put("1", key="k")
    relay = mode.relay(Odd(), max_attempts=1)
    relay.drain()
    assert "None or an exception for each, not" in outbox.parked()[0].error


class Fragile(Broker):
    """Breaks down on a certain body, and does not say which of many it was."""

    def publish(self, messages: Sequence[Message]) -> list[Exception | None]:
        if any(message.body == b"bad" for message in messages):
            raise RuntimeError("something is wrong")
        return super().publish(messages)


def test_one_bad_message_in_a_batch_is_found(mode: RelayMode, outbox: Outbox, put: Put):
    broker = Fragile()
    for key in range(6):
        put("bad" if key == 3 else f"{key}", key=f"k{key}")
    relay = mode.relay(broker, max_attempts=2, backoff=AT_ONCE).start()
    broker.wait_for(5)
    until(outbox.parked)
    relay.stop()
    assert sorted(broker.bodies) == ["0", "1", "2", "4", "5"]
    assert outbox.parked()[0].key == "k3"


def test_stop_ends_what_is_under_way_first(
    mode: RelayMode, outbox: Outbox, put: Put, broker: Broker
):
    entered, go_on = threading.Event(), threading.Event()

    class Slow(Broker):
        def publish(self, messages: Sequence[Message]) -> list[Exception | None]:
            entered.set()
            assert go_on.wait(60)
            return super().publish(messages)

    slow = Slow()
    put("1")
    relay = mode.relay(slow, lease=3).start()
    assert entered.wait(60)
    stopping = threading.Thread(target=relay.stop)
    stopping.start()
    go_on.set()
    stopping.join(60)
    assert not stopping.is_alive()
    assert slow.bodies == ["1"]
    assert outbox.depth() == type(outbox.depth())(0, 0.0, 0, 0, 0, 0)


def test_stop_says_when_the_publisher_hangs_and_can_be_called_again(mode: RelayMode, put: Put):
    entered, go_on = threading.Event(), threading.Event()

    class Hanging(Broker):
        def publish(self, messages: Sequence[Message]) -> list[Exception | None]:
            entered.set()
            assert go_on.wait(60)
            return super().publish(messages)

    hanging = Hanging()
    put("1")
    relay = mode.relay(hanging).start()
    assert entered.wait(60)
    try:
        with pytest.raises(TimeoutError, match=r"within grace=0\.01 s.*call stop again"):
            mode.run(relay.own.stop, 0.01)
    finally:
        go_on.set()
    relay.stop()
    assert hanging.bodies == ["1"]


def test_a_relay_that_lost_its_slots_records_nothing(
    url: str, mode: RelayMode, outbox: Outbox, put: Put, caller: Callable[[], Any]
):
    """It was stopped for longer than its lease: what it learned is another's to decide."""
    connection = caller()
    connection.rollback()

    class Thief(Broker):
        def publish(self, messages: Sequence[Message]) -> list[Exception | None]:
            begin(connection)
            connection.cursor().execute(
                "UPDATE twicesafe_outbox_slots SET fence = fence + 1, owner = 'thief',"
                " lease_until = lease_until + 60000"
                if not url.startswith("sqlite")
                else "UPDATE twicesafe_outbox_slots SET fence = fence + 1, owner = x'00',"
                " lease_until = lease_until + 60000"
            )
            connection.commit()
            return super().publish(messages)

    thief = Thief()
    thief.refuses = {"bad"}
    put("bad", key="k")
    put("good", key="k2")
    relay = mode.relay(thief, max_attempts=1).start()
    thief.wait_for(1)
    relay.stop()
    assert thief.tried.count("bad") == 1
    assert thief.bodies == ["good"]
    assert outbox.parked() == []
    assert outbox.depth().pending == 1


# --- push ------------------------------------------------------------------------------------------


def test_a_sleeping_relay_is_woken_by_an_add(postgres_url: str):
    with Outbox.open(postgres_url) as outbox:
        port = outbox.store.outbox
        port.perform(Heartbeat(b"sleeper", 60_000))
        woken = threading.Event()

        def sleep() -> None:
            port.listen(b"sleeper", 30)
            woken.set()

        sleeper = threading.Thread(target=sleep)
        sleeper.start()
        import psycopg

        with psycopg.connect(postgres_url, autocommit=True) as connection:
            while not connection.execute(
                "SELECT 1 FROM twicesafe_outbox_relays WHERE asleep"
            ).fetchone():
                assert sleeper.is_alive()
            with connection.transaction():
                outbox.add(connection, topic="t", body="")
        assert woken.wait(60)
        sleeper.join()


def test_a_relay_does_not_sleep_while_a_message_is_pending(postgres_url: str):
    with Outbox.open(postgres_url) as outbox:
        import psycopg

        port = outbox.store.outbox
        port.perform(Heartbeat(b"sleeper", 60_000))
        with psycopg.connect(postgres_url) as connection:
            outbox.add(connection, topic="t", body="")
        port.listen(b"sleeper", 30)  # comes back at once, or the test times out


async def test_asyncpg(postgres_url: str):
    import asyncpg

    url = postgres_url.replace("postgresql://", "postgresql+asyncpg://")
    broker = AsyncBroker()
    from twicesafe.outbox import AsyncOutboxRelay

    async with AsyncOutbox.open(url) as outbox:
        connection = await asyncpg.connect(postgres_url)
        async with connection.transaction():
            await outbox.add(connection, topic="t", body="1", key="k")
            await outbox.add_many(connection, [{"topic": "t", "body": "2", "key": "k"}])
        await connection.close()
        relay = AsyncOutboxRelay(outbox.store, broker)
        assert await relay.drain() == 2
        assert broker.bodies == ["1", "2"]
        assert (await outbox.depth()).pending == 0
        assert await outbox.parked() == []
        with pytest.raises(UsageError, match="not parked"):
            await outbox.retry("00" * 16, by="ana")
        with pytest.raises(UsageError, match="not parked"):
            await outbox.skip("00" * 16, by="ana")


# --- settings of the session ---------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_postgresql_text_that_the_default_encoding_of_a_session_cannot_hold(
    postgres_url: str, kind: str, encoding: str
):
    relays = RelayMode(kind, postgres_url)
    broker = Broker() if kind == "sync" else AsyncBroker()
    with psycopg.connect(f"{postgres_url}?client_encoding=utf8") as connection:
        database = connection.info.dbname
        connection.execute(f"ALTER DATABASE \"{database}\" SET client_encoding = '{encoding}'")  # type: ignore[arg-type]
    with Outbox.open(postgres_url) as outbox:
        with psycopg.connect(f"{postgres_url}?client_encoding=utf8") as connection:
            outbox.add(connection, topic="€", body="bad", key="☃")
            outbox.add(connection, topic="orders", body="good")
        broker.refuses, broker.why = {"bad"}, ValueError("not for ☃")
        relay = relays.relay(broker, max_attempts=1)
        assert relay.drain() == 1
        (lane,) = outbox.parked()
        assert (lane.key, lane.topic, lane.error) == ("☃", "€", "ValueError: not for ☃")
        broker.refuses = set()
        outbox.retry(lane.lane, by="☃")
        assert relay.drain() == 1
    assert [(message.topic, message.key) for message in broker.got] == [
        ("orders", None),
        ("€", "☃"),
    ]
    relays.close()


@pytest.fixture(params=["LATIN1", "WIN1252"])
def postgres_url_not_utf8(postgres: Any, request: Any) -> Iterator[str]:
    name = f"t_{request.param.lower()}_{uuid.uuid4().hex[:6]}"
    postgres.execute(
        f"CREATE DATABASE {name} ENCODING '{request.param}' TEMPLATE template0"
        " LC_COLLATE 'C' LC_CTYPE 'C'"
    )
    try:
        yield postgres.url_of(name)
    finally:
        postgres.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.parametrize("kind", ["sync", "async", "asyncpg"])
def test_an_error_that_the_encoding_of_the_database_cannot_hold(
    postgres_url_not_utf8: str, kind: str
):
    """Such a text, or an operator's name or reason, is kept with escapes: the relay goes on."""
    url = postgres_url_not_utf8
    if kind == "asyncpg":
        url = url.replace("postgresql://", "postgresql+asyncpg://")
    relays = RelayMode(kind if kind == "sync" else "async", url)
    broker = Broker() if kind == "sync" else AsyncBroker()
    with Outbox.open(postgres_url_not_utf8) as outbox:
        with psycopg.connect(postgres_url_not_utf8) as connection:
            outbox.add(connection, topic="t", body="bad", key="é")
            outbox.add(connection, topic="t", body="worse", key="k")
            outbox.add(connection, topic="t", body="good")
        relay = relays.relay(broker, max_attempts=1)
        broker.refuses, broker.why = {"worse"}, ValueError("clé")
        assert relay.drain() == 2
        (lane,) = outbox.parked()
        assert lane.error == "ValueError: clé"
        outbox.retry(lane.lane, by="ana")
        broker.why = ValueError("clé ☃")
        assert relay.drain() == 0
        (lane,) = outbox.parked()
        assert lane.error == r"ValueError: cl\xe9 \u2603"
        outbox.skip(lane.lane, by="☃", why="…")
        assert outbox.parked() == []
    relays.close()
    assert broker.bodies == ["bad", "good"]


# --- wrong settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings, says",
    [
        ({"lease": 0.01}, "lease="),
        ({"batch": 0}, "batch="),
        ({"max_attempts": 0}, "max_attempts="),
        ({"concurrency": 0}, "concurrency="),
        ({"backoff": 5}, "backoff=5 is not valid: use a Backoff"),
        ({"encryption": "key"}, "encryption='str' is not valid: use None or an object with"),
    ],
)
def test_settings_that_make_no_sense(tmp_path: Any, settings: dict[str, Any], says: str):
    with pytest.raises(ConfigurationError, match=says):
        OutboxRelay.open(f"sqlite:///{tmp_path / 'x.db'}", Broker(), **settings)


def test_a_relay_runs_once_at_a_time(tmp_path: Any):
    with (
        OutboxRelay.open(f"sqlite:///{tmp_path / 'x.db'}", Broker()) as relay,
        pytest.raises(UsageError, match="already running"),
    ):
        relay.drain()


def test_no_publisher(tmp_path: Any):
    with pytest.raises(ConfigurationError, match="needs a publisher"):
        OutboxRelay.open(f"sqlite:///{tmp_path / 'x.db'}", 7)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="no publisher for 'ftp'"):
        OutboxRelay.open(f"sqlite:///{tmp_path / 'x.db'}", "ftp://there")
