"""Lease mode on a key that an open inbox transaction holds: being worked on, never an outage.

Every SQL engine, blocking and async, single calls and batches. An open transaction is held by the
test itself, so nothing here depends on time.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.polling import until
from tests.transactions.kinds import open_door
from twicesafe import (
    AsyncReceiver,
    Inbox,
    Policy,
    Receiver,
    StillInProgressError,
    StoreUnavailableError,
    UsageError,
)
from twicesafe._core.protocol import ClaimRequest, Verdict
from twicesafe._values.keys import Key, new_owner, new_owner_ahead
from twicesafe.events import Event

ENGINES = ["postgresql", "postgresql-generations", "asyncpg", "mysql", "sqlite"]
DOORS = {"postgresql": "psycopg", "mysql": "pymysql", "sqlite": "sqlite3"}

HASTY = Policy(in_flight="reject")
BRIEF = Policy(wait=0.3)
UNPROTECTED = Policy(wait=0.3, outage="run")


@pytest.fixture(params=ENGINES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    engine = request.param
    if engine == "sqlite":
        return f"sqlite:///{tmp_path / 'mixed.db'}?timeout=0.3"
    if engine == "mysql":
        return str(request.getfixturevalue("mariadb_url"))
    plain = str(request.getfixturevalue("postgres_url"))
    if engine == "asyncpg":
        return plain.replace("postgresql:", "postgresql+asyncpg:")
    return f"{plain}?generations=1h" if engine.endswith("generations") else plain


class Held:
    """A key that is entered in a transaction which does not end before the test says so."""

    def __init__(self, url: str) -> None:
        plain = url.replace("+asyncpg", "")
        self.inbox = Inbox.open(plain)
        self.door = open_door(DOORS[plain.partition(":")[0]], plain.partition("?")[0])
        self.door.begin()
        assert self.inbox.accept(self.door.connection, "held")

    def close(self) -> None:
        self.door.rollback()
        self.door.close()
        self.inbox.close()


@pytest.fixture
def held(url: str) -> Iterator[Held]:
    with Receiver.open(url):
        pass  # the tables are there
    opened = Held(url)
    yield opened
    opened.close()


def never() -> None:
    raise AssertionError("the handler ran")


class Heard(list[Event]):
    def __call__(self, event: Event) -> None:
        self.append(event)

    @property
    def names(self) -> set[str]:
        return {type(event).__name__ for event in self}


@pytest.mark.parametrize("policy", [HASTY, BRIEF, UNPROTECTED], ids=["reject", "wait", "run"])
def test_a_key_that_a_transaction_holds_is_in_progress(url: str, held: Held, policy: Policy):
    heard = Heard()
    with Receiver.open(url, policy=policy, observers=[heard]) as receiver:
        with pytest.raises(StillInProgressError) as caught:
            receiver.process("held", never)
        assert caught.value.retryable
        assert not {"Unprotected", "StoreFailed"} & heard.names
        (failure,) = receiver.process_many(["held"], lambda _: never(), key=str)
        assert isinstance(failure.error, StillInProgressError)
        with pytest.raises(StillInProgressError), receiver.claim("held"):
            never()
    assert not {"Unprotected", "StoreFailed"} & heard.names


@pytest.mark.parametrize("policy", [HASTY, BRIEF, UNPROTECTED], ids=["reject", "wait", "run"])
def test_the_same_with_asyncio(url: str, held: Held, policy: Policy):
    heard = Heard()

    async def main() -> None:
        async with AsyncReceiver.open(url, policy=policy, observers=[heard]) as receiver:
            with pytest.raises(StillInProgressError):
                await receiver.process("held", never)
            (failure,) = await receiver.process_many(["held"], lambda _: never(), key=str)
            assert isinstance(failure.error, StillInProgressError)

    asyncio.run(main())
    assert not {"Unprotected", "StoreFailed"} & heard.names


def test_who_waits_gets_the_answer_of_the_transaction(
    url: str, held: Held, monkeypatch: pytest.MonkeyPatch
):
    """Waiters look again by themselves: nothing announces the end of a caller's transaction."""
    values: list[bool] = []
    asked: list[object] = []
    with Receiver.open(url, policy=Policy(wait=60)) as receiver:
        perform = receiver.store.perform
        monkeypatch.setattr(
            receiver.store, "perform", lambda request: asked.append(request) or perform(request)
        )

        def wait() -> None:
            values.append(receiver.process("held", lambda: "mine").replayed)

        thread = threading.Thread(target=wait)
        thread.start()
        until(lambda: len(asked) > 1)
        held.door.rollback()
        thread.join(60)
    assert values == [False]  # it was rolled back, so the waiter ran


FREE = [f"free-{number}" for number in range(20)]


def test_unrelated_keys_do_not_wait_behind_it(url: str, held: Held):
    """Also those that travel in one batch with it, and those of the same event loop."""
    if url.startswith("sqlite"):
        pytest.skip("SQLite has one writer: an open transaction holds every key")
    patient = f"{url}{'&' if '?' in url else '?'}timeout=20"
    with Receiver.open(patient, policy=HASTY) as receiver:
        items = ["held", *FREE]
        results = receiver.process_many(items, str, key=str)
        assert [type(each).__name__ for each in results] == ["Failure"] + ["Outcome"] * 20
        before = time.monotonic()
        store = receiver.store
        for _ in range(3):
            answer = store.perform(ClaimRequest(Key("held"), new_owner(), 1000))
            assert answer.verdict is Verdict.BUSY
            assert answer.locked
        assert time.monotonic() - before < store.settings.timeout  # type: ignore[attr-defined]

    async def main() -> None:
        async with AsyncReceiver.open(url, policy=Policy(wait=60)) as receiver:
            waiting = [asyncio.create_task(receiver.process("held", str, 1))]
            done = 0
            for round_ in range(5):
                names = [f"{round_}-{name}" for name in FREE]
                outcomes = await asyncio.gather(*(receiver.process(n, str, n) for n in names))
                done += sum(not outcome.replayed for outcome in outcomes)
            assert done == 100
            assert not waiting[0].done()
            held.door.rollback()
            assert not (await waiting[0]).replayed

    asyncio.run(main())


def test_a_record_that_a_transaction_takes_over_is_in_progress_too(url: str):
    """Not inserted by the transaction, but locked by it: the owner's lease was over."""
    if url.startswith("sqlite"):
        pytest.skip("SQLite has one writer: an open transaction holds every key")
    plain = url.replace("+asyncpg", "")
    with Receiver.open(url, policy=HASTY) as receiver, Inbox.open(plain) as inbox:
        receiver.store.perform(ClaimRequest(Key("held"), new_owner(), 1))
        record = receiver.record("held")
        assert record is not None
        until(lambda: receiver.stats().stuck == 1)  # its lease is over
        door = open_door(DOORS[plain.partition(":")[0]], plain.partition("?")[0])
        door.begin()
        try:
            outcome = inbox.process(door.connection, "held", lambda: 1)
            assert (outcome.attempt, outcome.fence) == (2, record.fence + 1)
            with pytest.raises(StillInProgressError):
                receiver.process("held", never)
            # InnoDB locks the gap below a record that an insert has met: above it all is free.
            free = next(name for name in FREE if Key(name).id > Key("held").id)
            assert receiver.process(free, str, 1).value == "1"
        finally:
            door.rollback()
            door.close()


@pytest.mark.parametrize("lock_timeout", ["0", "100ms"], ids=["of ours", "of the database"])
def test_a_locked_table_is_an_outage_and_not_a_busy_key(postgres_url: str, lock_timeout: str):
    """A ``lock_timeout`` of the role or the database ends the wait in the same words as a held row."""
    with psycopg.connect(postgres_url, autocommit=True) as owner:
        name = owner.info.dbname
        owner.execute(f"ALTER DATABASE {name} SET lock_timeout = '{lock_timeout}'")  # type: ignore[call-overload]
    with (
        Receiver.open(postgres_url, policy=HASTY) as receiver,
        psycopg.connect(postgres_url) as other,
    ):
        other.execute("LOCK TABLE twicesafe_keys IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(StoreUnavailableError):
            receiver.store.perform(ClaimRequest(Key("k"), new_owner(), 1000))


# --- operators -------------------------------------------------------------------------------


@pytest.fixture
def taken_over(url: str) -> Iterator[str]:
    """A record that others can see, and that an open transaction works on."""
    plain = url.replace("+asyncpg", "")
    door = open_door(DOORS[plain.partition(":")[0]], plain.partition("?")[0])
    with Receiver.open(url) as receiver, Inbox.open(plain) as inbox:
        receiver.store.perform(ClaimRequest(Key("taken"), new_owner(), 1))
        until(lambda: receiver.stats().stuck == 1)
        door.begin()
        assert inbox.process(door.connection, "taken", lambda: 1).attempt == 2
        yield "taken"
        door.rollback()
    door.close()


def test_an_operator_learns_that_a_transaction_holds_the_record(url: str, taken_over: str):
    with Receiver.open(url) as receiver:
        acts = [
            lambda: receiver.release(taken_over, by="ann"),
            lambda: receiver.resolve(taken_over, 1, by="ann"),
            lambda: receiver.forget(taken_over, by="ann"),
        ]
        for act in acts:
            with pytest.raises(StillInProgressError, match="nothing was changed") as caught:
                act()
            assert caught.value.retryable
            assert caught.value.key == Key(taken_over)
        assert receiver.audit(taken_over) == []


def test_an_async_operator_gets_the_same_error(url: str, taken_over: str):
    async def main() -> None:
        async with AsyncReceiver.open(url) as receiver:
            with pytest.raises(StillInProgressError, match="nothing was changed"):
                await receiver.release(taken_over, by="ann")
            with pytest.raises(StillInProgressError, match="nothing was changed"):
                await receiver.forget(taken_over, by="ann")

    asyncio.run(main())


def test_no_operator_gets_past_a_transaction_that_has_just_begun(url: str, held: Held):
    """Its record is not committed: PostgreSQL does not see it, the others wait for it."""
    with Receiver.open(url) as receiver:
        for act in (receiver.release, receiver.forget):
            with pytest.raises(
                (StillInProgressError, UsageError), match=r"no record|transaction holds"
            ):
                act("held", by="ann")


def test_an_inbox_does_not_count_a_claim_made_ahead(url: str) -> None:
    """A worker of lease mode died before it could start this message of its batch."""
    plain = url.replace("+asyncpg", "")
    with Receiver.open(plain) as receiver:
        for name in ("one", "many"):
            receiver.store.perform(ClaimRequest(Key(name), new_owner_ahead(), 0))
        door = open_door(DOORS[plain.partition(":")[0]], plain.partition("?")[0])
        with Inbox.open(plain, policy=Policy(max_attempts=1)) as inbox:
            door.begin()
            outcome = inbox.process(door.connection, "one", lambda connection: None)
            assert inbox.accept_many(door.connection, ["many"]) == [True]
            door.commit()
            assert (outcome.attempt, outcome.replayed) == (1, False)
        door.close()
        assert [receiver.record(name).attempt for name in ("one", "many")] == [1, 1]
