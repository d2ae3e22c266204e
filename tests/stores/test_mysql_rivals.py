"""MariaDB: sessions that get in each other's way. Locks are held open on purpose, in a chosen order."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pymysql
import pytest

from twicesafe import Inbox, Key, StillInProgressError
from twicesafe._core.protocol import (
    Ack,
    Claimed,
    ClaimRequest,
    Complete,
    Fail,
    Read,
    Release,
    Renew,
    Sweep,
    Verdict,
)
from twicesafe._engines.mysql import MysqlStore
from twicesafe._engines.mysql.programs import MysqlPrograms
from twicesafe._engines.mysql.settings import LOCK_WAIT
from twicesafe._engines.sql.commands import atomically
from twicesafe.errors import StoreUnavailableError

A, B = b"a" * 16, b"b" * 16
HOUR = 3_600_000
RECORDS, META = "twicesafe_keys", "twicesafe_meta"


@pytest.fixture
def store(mariadb_url: str) -> Iterator[MysqlStore]:
    opened = MysqlStore.open(mariadb_url)
    yield opened
    opened.close()


@contextmanager
def another_connection(store: MysqlStore) -> Iterator[Any]:
    """A session with an open transaction; what it leaves open is rolled back."""
    session = store._connect()
    cursor = session.connection.cursor()
    cursor.execute("SET SESSION idle_transaction_timeout = 0")
    cursor.execute("START TRANSACTION")
    try:
        yield cursor
    finally:
        session.close()


@contextmanager
def connected(url: str) -> Iterator[Any]:
    """The user's own connection, as PyMySQL gives it."""
    import pymysql

    parts = urlsplit(url)
    place = {"host": parts.hostname, "port": parts.port, "user": parts.username}
    connection: Any = pymysql.connect(**place, database=parts.path.strip("/"))
    try:
        yield connection
    finally:
        connection.close()


@contextmanager
def meanwhile(store: MysqlStore, act: Callable[[], Any]) -> Iterator[Future[Any]]:
    """Do it in a thread, and go on when it waits for a lock: in the server, or by asking again."""
    asked: list[str] = []
    store._tap = lambda when, command: asked.append(command.sql) if when == "before" else None
    with (
        pytest.MonkeyPatch.context() as patch,
        ThreadPoolExecutor(1) as pool,
        another_connection(store) as watcher,
    ):
        patch.setattr("twicesafe._engines.mysql.store.CLAIM_LOCK_WAIT", 60)
        future = pool.submit(act)
        until = time.monotonic() + 60
        while time.monotonic() < until and not future.done():
            watcher.execute("SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'")
            if watcher.fetchone()[1] != "0" or len(asked) > len(set(asked)) + 3:
                break
        else:
            pytest.fail(f"it did not wait: {future}")
        yield future
    store._tap = None


def expired(store: MysqlStore, key: Key, lives: int = 3) -> int:
    """A record whose retention is over; its last fence."""
    for _ in range(lives - 1):
        store.perform(ClaimRequest(key, A, HOUR))
        store.perform(Release(key.id, "ann", "", HOUR))
    won = store.perform(ClaimRequest(key, A, HOUR))
    store.perform(Complete(key.id, A, won.fence, 1, b""))
    time.sleep(0.002)
    fence: int = won.fence
    return fence


def there(cursor: Any, key: Key) -> bool:
    """Not swept, over or not."""
    cursor.execute(f"SELECT 1 FROM {RECORDS} WHERE id = %s", (key.id[:16],))
    return cursor.fetchone() is not None


# --- P3: fences never restart ----------------------------------------------------------------


def claim_during_a_sweep(store: MysqlStore) -> tuple[int, Claimed]:
    """The sweep has raised the floor and deleted the record, and not yet committed either."""
    key = Key("k")
    last = expired(store, key)
    with another_connection(store) as sweeper:
        sweeper.execute(f"UPDATE {META} SET floor = {last} WHERE one = 1")
        sweeper.execute(f"DELETE FROM {RECORDS} WHERE id = %s", (key.id[:16],))
        with meanwhile(store, lambda: store.perform(ClaimRequest(key, B, HOUR))) as claiming:
            sweeper.execute("COMMIT")
            return last, claiming.result(120)


@pytest.mark.parametrize("returning", [True, False], ids=["MariaDB", "MySQL"])
def test_a_claim_during_a_sweep_reads_the_new_floor(store: MysqlStore, returning: bool):
    store.programs = MysqlPrograms("twicesafe", returning)
    last, claimed = claim_during_a_sweep(store)
    assert claimed.verdict is Verdict.WON
    assert claimed.fence > last


def test_without_the_shared_lock_the_fence_would_restart(store: MysqlStore):
    """The test above can fail: this is the race that it forces."""
    store.programs = programs = MysqlPrograms("twicesafe", returning=False)
    programs._start = programs._start.replace(" LOCK IN SHARE MODE", "")
    last, claimed = claim_during_a_sweep(store)
    assert claimed.verdict is Verdict.WON
    assert claimed.fence <= last


def test_a_sweep_deletes_nothing_while_a_claim_knows_the_old_floor(store: MysqlStore):
    key = Key("k")
    expired(store, key)
    with another_connection(store) as claimer:  # the store's own statement, kept open after its end
        other = ClaimRequest(Key("other"), B, HOUR)
        program = store.programs.perform(other)
        command = program.send(None)
        claimer.execute(command.sql, command.args)
        assert store.perform(Sweep(100))[0].removed == 0
        assert there(claimer, key)
        claimer.execute("COMMIT")
    assert store.perform(Sweep(100))[0].removed == 1


def test_a_sweep_that_meets_an_open_inbox_holds_up_no_claim(store: MysqlStore, mariadb_url: str):
    """It would wait for the floor until the transaction ends, and every new claim behind it."""
    low, high = Key("low"), Key("high")
    won = store.perform(ClaimRequest(low, A, HOUR))
    expired(store, high)
    assert store.perform(Sweep(100))[0].removed == 1  # so the floor is above `low`
    store.perform(Complete(low.id, A, won.fence, 1, b""))
    expired(store, high)
    with Inbox.open(mariadb_url) as inbox, connected(mariadb_url) as connection:
        connection.begin()
        assert inbox.accept(connection, "m-1")
        with ThreadPoolExecutor(1) as pool:
            sweeping = pool.submit(store.perform, Sweep(100))
            for number in range(20):
                claimed = store.perform(ClaimRequest(Key(f"new {number}"), B, HOUR))
                assert claimed.verdict is Verdict.WON
            assert sweeping.result(120)[0].removed == 1
        assert there(connection.cursor(), high)
        connection.commit()
    assert store.perform(Sweep(100))[0].removed == 1


def test_a_sweep_does_not_wait_for_locked_records(store: MysqlStore):
    key, other = Key("k"), Key("other")
    expired(store, key)
    expired(store, other)
    with another_connection(store) as worker:
        worker.execute(f"SELECT * FROM {RECORDS} WHERE id = %s FOR UPDATE", (key.id[:16],))
        report, _ = store.perform(Sweep(100))
        worker.execute("ROLLBACK")  # the server ends a transaction some time after its connection
    assert report.removed == 1
    report, _ = store.perform(Sweep(100))
    assert report.removed == 1


@pytest.mark.parametrize("held", [[2], [0, 7], [3, 4, 5]], ids=str)
def test_a_sweep_steps_over_what_a_transaction_has_met(
    store: MysqlStore, mariadb_url: str, held: list[int]
):
    """The server would read a small table through, and wait at each row that the transaction holds."""
    names = [f"m-{number}" for number in range(8)]
    with Inbox.open(mariadb_url) as inbox, connected(mariadb_url) as connection:
        for name in names:
            connection.begin()
            assert inbox.accept(connection, name)
            connection.commit()
        cursor = connection.cursor()
        cursor.execute(f"UPDATE {RECORDS} SET expires_at = 1")
        cursor.execute(f"UPDATE {META} SET floor = floor + 10")
        connection.commit()
        connection.begin()
        for number in held:
            assert inbox.accept(connection, names[number])
        asked: list[str] = []
        store._tap = lambda when, command: asked.append(command.sql) if when == "before" else None
        assert store.perform(Sweep(100))[0].removed == len(names) - len(held)
        store._tap = None
        assert len(asked) == len(set(asked)), "something was waited for, and asked again"
        connection.rollback()
    assert store.perform(Sweep(100))[0].removed == len(held)


@pytest.mark.parametrize("change", ["complete", "fail", "renew"])
def test_a_batch_does_not_wait_for_a_row_that_is_none_of_its_own(store: MysqlStore, change: str):
    keys = [Key(f"k{number}") for number in range(8)]
    won = [store.perform(ClaimRequest(key, A, HOUR)) for key in keys]
    ends: dict[str, Callable[[Key, int], Any]] = {
        "complete": lambda key, fence: Complete(key.id, A, fence, HOUR, b"v"),
        "fail": lambda key, fence: Fail(key.id, A, fence, 0, 5, HOUR, "no"),
        "renew": lambda key, fence: Renew(key.id, A, fence, HOUR),
    }
    asks = [ends[change](key, one.fence) for key, one in zip(keys, won, strict=True)]
    with another_connection(store) as worker:
        worker.execute(f"SELECT * FROM {RECORDS} WHERE id = %s FOR UPDATE", (keys[3].id[:16],))
        asked: list[str] = []
        store._tap = lambda when, command: asked.append(command.sql) if when == "before" else None
        assert store.perform_many([*asks[:3], *asks[4:]]) == [Ack.OK] * 7
        store._tap = None
    assert len(asked) == 1, "something was waited for, and asked again"


def test_fences_rise_under_sweeps_and_claims_at_once(store: MysqlStore):
    keys = [Key(f"k{number}") for number in range(3)]
    fences: dict[Key, list[int]] = {key: [] for key in keys}
    problems: list[Exception] = []
    began = time.monotonic()

    def goes_on() -> bool:
        """Two seconds, or longer on a machine that is too busy for enough lives."""
        seconds = time.monotonic() - began
        return seconds < 2 or (seconds < 120 and min(map(len, fences.values())) <= 10)

    def live(owner: bytes) -> None:
        while goes_on():
            for key in keys:
                won = store.perform(ClaimRequest(key, owner, HOUR))
                if won.verdict is Verdict.WON:
                    fences[key].append(won.fence)  # no other caller has it before we give it back
                    store.perform(Complete(key.id, owner, won.fence, 1, b""))

    def sweep() -> None:
        while goes_on():
            store.perform(Sweep(100))

    def guarded(act: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                act()
            except Exception as error:
                problems.append(error)

        return run

    acts = [lambda n=n: live(bytes([n]) * 16) for n in range(4)] + [sweep, sweep]
    threads = [threading.Thread(target=guarded(act)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    for seen in fences.values():
        assert len(seen) > 10, "too few lives to prove anything"
        assert seen == sorted(set(seen))


# --- deadlocks, lock waits, lost inserts -----------------------------------------------------


def two_claims(store: MysqlStore) -> list[Complete]:
    """Two completions, in the order in which the store will write them."""
    keys = sorted((Key("x"), Key("y")), key=lambda key: key.id)
    won = [store.perform(ClaimRequest(key, A, HOUR)) for key in keys]
    return [
        Complete(key.id, A, claimed.fence, HOUR, b"v")
        for key, claimed in zip(keys, won, strict=True)
    ]


def deadlocks(store: MysqlStore) -> int:
    with another_connection(store) as cursor:
        cursor.execute("SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'")
        return int(cursor.fetchone()[1])


def test_a_deadlock_is_run_again(store: MysqlStore):
    first, second = two_claims(store)
    before = deadlocks(store)
    lock = f"SELECT * FROM {RECORDS} WHERE id = %s FOR UPDATE"
    with another_connection(store) as rival:
        # The server gives up the transaction that has written less: that must be ours.
        rival.execute("CREATE TEMPORARY TABLE weight (n INT) ENGINE=InnoDB")
        rival.execute("START TRANSACTION")
        rival.execute(
            f"INSERT INTO {RECORDS} SELECT 1000 + seq, LEFT(UNHEX(SHA2(seq, 256)), 16), 0, 1, 1, '', 0, 0, 0,"
            " 0, 0, 0, '', '', '', NULL, NULL FROM seq_1_to_50"
        )
        rival.execute(lock, (second.id[:16],))
        with meanwhile(store, lambda: store.perform_many([first, second])) as completing:
            rival.execute(lock, (first.id[:16],))
            rival.execute("ROLLBACK")
            assert completing.result(120) == [Ack.OK, Ack.OK]
    assert deadlocks(store) > before


def test_a_row_that_stays_locked_fails_no_other_key(mariadb_url: str):
    store = MysqlStore.open(f"{mariadb_url}?timeout=1")
    first, second = two_claims(store)
    with another_connection(store) as rival:
        rival.execute(f"SELECT * FROM {RECORDS} WHERE id = %s FOR UPDATE", (first.id[:16],))
        locked, free = store.perform_many([first, second])
    assert isinstance(locked, StoreUnavailableError)
    assert "held the row" in str(locked)
    assert free is Ack.OK
    assert store.perform(first) is Ack.OK
    store.close()


def test_a_claim_that_waits_for_a_row_holds_up_no_other(store: MysqlStore):
    """MariaDB would lock the table's counter for an INSERT … SELECT, as long as it waits."""
    store.perform(ClaimRequest(Key("k"), A, HOUR))
    with another_connection(store) as rival:
        rival.execute(f"SELECT * FROM {RECORDS} WHERE id = %s FOR UPDATE", (Key("k").id[:16],))
        with meanwhile(store, lambda: store.perform(ClaimRequest(Key("k"), B, HOUR))) as waiting:
            won = store.perform_many([ClaimRequest(Key(f"new{n}"), B, HOUR) for n in range(3)])
            assert [claimed.verdict for claimed in won] == [Verdict.WON] * 3
            assert store.perform(ClaimRequest(Key("another"), B, HOUR)).verdict is Verdict.WON
            assert not waiting.done()
            rival.execute("COMMIT")
            assert waiting.result(120).verdict is Verdict.BUSY


def test_a_worker_that_stalls_in_a_transaction_does_not_keep_its_locks(mariadb_url: str):
    store = MysqlStore.open(f"{mariadb_url}?timeout=1")
    first, _ = two_claims(store)
    stalled = store._connect()  # as a stopped process would leave it
    stalled.connection.cursor().execute("START TRANSACTION")
    stalled.connection.cursor().execute(
        f"SELECT * FROM {RECORDS} WHERE id = %s FOR UPDATE", (first.id[:16],)
    )
    until = time.monotonic() + 60
    answer: Any = None
    while answer is not Ack.OK and time.monotonic() < until:
        (answer,) = store.perform_many([first])
    stalled.close()
    store.close()
    assert answer is Ack.OK


def test_a_lost_insert_finds_the_winner(store: MysqlStore, mariadb_url: str):
    """Decided under a lock, but a row that is not there cannot be locked."""
    key, other = Key("k"), MysqlStore.open(mariadb_url)
    raced: list[Claimed] = []

    def overtake(moment: str, command: Any) -> None:
        if moment == "before" and command.sql.startswith("INSERT") and not raced:
            raced.append(other.perform(ClaimRequest(key, B, HOUR)))

    store._tap = overtake
    programs = store.programs
    answer = store._run(
        lambda: atomically(programs.decide(ClaimRequest(key, A, HOUR)), programs.begin)
    )
    other.close()
    assert raced[0].verdict is Verdict.WON
    assert answer.verdict is Verdict.BUSY
    assert store.perform(Read(key.id)).owner == B


@pytest.mark.parametrize("returning", [True, False], ids=["MariaDB", "MySQL"])
def test_batches_that_overlap_have_one_winner_per_key(store: MysqlStore, returning: bool):
    store.programs = MysqlPrograms("twicesafe", returning)
    keys = [Key(f"k{number}") for number in range(60)]
    gate = threading.Barrier(8)

    def claim_all(number: int) -> list[Any]:
        mine = keys[number:] + keys[:number]  # each in its own order
        gate.wait()
        return store.perform_many([ClaimRequest(key, bytes([number]) * 16, HOUR) for key in mine])

    with ThreadPoolExecutor(8) as pool:
        answers = [answer for found in pool.map(claim_all, range(8)) for answer in found]
    verdicts = [answer.verdict for answer in answers]
    assert verdicts.count(Verdict.WON) == 60
    assert verdicts.count(Verdict.BUSY) == 7 * 60


# --- inboxes: transactions that stay open ------------------------------------------------------


def test_a_sweep_goes_on_while_transactions_of_an_inbox_overlap(
    store: MysqlStore, mariadb_url: str
):
    """There is always one open. Each reads the floor of its second, so the others can be raised."""
    key = Key("k")
    expired(store, key)
    removed, number = 0, 0
    with (
        Inbox.open(mariadb_url) as inbox,
        connected(mariadb_url) as one,
        connected(mariadb_url) as two,
    ):
        open_, next_ = one, two
        open_.begin()
        assert inbox.accept(open_, "m-0")
        until = time.monotonic() + 60
        while not removed and time.monotonic() < until:
            number += 1
            next_.begin()
            assert inbox.accept(next_, f"m-{number}")
            open_.commit()
            open_, next_ = next_, open_
            removed += store.perform(Sweep(100))[0].removed
        open_.rollback()
    assert removed == 1
    assert store.perform(ClaimRequest(key, B, HOUR)).fence > 3


def test_a_floor_that_a_transaction_reads_holds_back_what_lies_above_it(
    store: MysqlStore, mariadb_url: str
):
    """It may be about to insert that very key, with a fence above the floor that it has read."""
    key = Key("k")
    last = expired(store, key)
    with Inbox.open(mariadb_url) as inbox, connected(mariadb_url) as connection:
        connection.begin()
        assert inbox.accept(connection, "m-1")
        assert store.perform(Sweep(100))[0].removed == 0
        cursor = connection.cursor()
        cursor.execute(f"SELECT MIN(floor), MAX(floor) FROM {META}")
        assert cursor.fetchone() == (0, last)  # all but the one that is read
        connection.commit()
    assert store.perform(Sweep(100))[0].removed == 1
    with Inbox.open(mariadb_url) as inbox, connected(mariadb_url) as connection:
        connection.begin()
        assert inbox.process(connection, "k", lambda: 1).fence == last + 1
        connection.commit()


def test_without_the_right_to_migrate_the_first_floor_serves_all(mariadb_url: str):
    """As older versions left it. Their rows are enough to work with; only sweeps wait more often."""
    MysqlStore.open(mariadb_url).close()
    with connected(mariadb_url) as connection:
        connection.cursor().execute(f"DELETE FROM {META} WHERE one > 1")
        connection.cursor().execute(f"UPDATE {META} SET floor = 7")
        connection.commit()
        with Inbox.open(f"{mariadb_url}?migrate=false") as inbox:
            connection.begin()
            assert inbox.process(connection, "m-1", lambda: 1).fence == 8
            connection.commit()
        with Inbox.open(mariadb_url):  # makes those that are missing
            cursor = connection.cursor()
            cursor.execute(f"SELECT COUNT(*), MIN(floor), MIN(`schema`) FROM {META}")
            assert cursor.fetchone() == (65, 7, 3)


@pytest.mark.parametrize("done", ["accept", "process"])
def test_snapshot_isolation_tells_a_late_duplicate_to_come_again(
    store: MysqlStore, mariadb_url: str, done: str
):
    """MariaDB 11.6 and later: who writes what changed after its snapshot gets an error."""
    with (
        Inbox.open(mariadb_url) as inbox,
        connected(mariadb_url) as late,
        connected(mariadb_url) as first,
    ):
        cursor = late.cursor()
        try:
            cursor.execute("SET SESSION innodb_snapshot_isolation = ON")
        except Exception as error:
            pytest.skip(f"this server does not know it: {error}")
        late.begin()
        cursor.execute(f"SELECT COUNT(*) FROM {RECORDS}")  # its snapshot is taken
        first.begin()
        assert inbox.process(first, "m-1", lambda: "first").value == "first"
        first.commit()

        def deliver() -> Any:
            if done == "accept":
                return inbox.accept(late, "m-1")
            return inbox.process(late, "m-1", lambda: "late").value

        with pytest.raises(StillInProgressError) as told:
            deliver()
        assert told.value.retryable
        late.rollback()
        late.begin()
        assert deliver() == {"accept": False, "process": "first"}[done]
        late.commit()


def test_a_batch_that_is_run_again_decides_no_claim_twice(mariadb_url: str):
    """One of a batch meets a locked row; the others are answered, and another owner takes over."""
    store, other = MysqlStore.open(mariadb_url), MysqlStore.open(mariadb_url)
    keys = sorted((Key(f"k{number}") for number in range(2)), key=lambda key: key.id)
    first, second = keys
    for key in keys:
        other.perform(ClaimRequest(key, b"z" * 16, 0))  # a lease that is over at once
    pushed: list[Any] = []

    def meanwhile(when: str, command: Any) -> None:
        """Between the decision about the first key and that about the second one."""
        if (
            when == "before"
            and not pushed
            and second.id[:16] in command.args
            and "FOR UPDATE" in command.sql
        ):
            pushed.append(other.perform(ClaimRequest(first, b"y" * 16, 0)))
            raise pymysql.OperationalError(LOCK_WAIT, "another transaction has it")

    store._tap = meanwhile
    answers = store.perform_many([ClaimRequest(key, b"x" * 16, 0) for key in keys])
    assert [answer.verdict for answer in answers] == [Verdict.WON, Verdict.WON]
    assert (answers[0].attempt, pushed[0].attempt) == (2, 3)
    assert other.perform(Read(first.id)).attempt == 3, "the claim was decided a second time"
    store.close()
    other.close()
