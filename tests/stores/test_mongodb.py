"""What is special about MongoDB: round trips, lost replies, races, its time, expiry, and restarts."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from lab.field.proxy import Fault, Proxy
from tests.stores.drivers import AnyReceiver
from tests.stores.mongodb_sockets import sockets_of_the_driver  # noqa: F401 - an autouse fixture
from twicesafe import (
    Key,
    StoreError,
    StoreUnavailableError,
)
from twicesafe._core.protocol import (
    Ack,
    ClaimRequest,
    Complete,
    Count,
    Fail,
    History,
    Read,
    Release,
    Renew,
    Survey,
    Verdict,
)
from twicesafe._engines.mongodb import AsyncMongodbStore, MongodbStore
from twicesafe._engines.mongodb.client import refused
from twicesafe._engines.mongodb.documents import DUPLICATE, DriverCall
from twicesafe._engines.mongodb.settings import Settings
from twicesafe._engines.versioned.lease_watch import GivenClock, ServiceClock
from twicesafe._values.clocks import wall_clock
from twicesafe.testing import FakeClock

KEY = Key("order-7", scope=("shop", "charge"))
A, B = b"a" * 16, b"b" * 16
HOUR = 3_600_000


@pytest.fixture
def store(mongodb_url: str) -> Iterator[MongodbStore]:
    made = MongodbStore.open(mongodb_url)
    yield made
    made.close()


def claim(owner: bytes, key: Key = KEY, lease: int = HOUR) -> ClaimRequest:
    return ClaimRequest(key, owner, lease)


def calls_of(store: Any) -> list[str]:
    """The calls that the store makes from now on."""
    calls: list[str] = []
    store._tap = lambda when, call: calls.append(call.operation) if when == "before" else None
    return calls


# --- round trips -----------------------------------------------------------------------------


def test_a_first_delivery_is_two_calls_and_a_repeat_is_one(store: MongodbStore):
    calls = calls_of(store)
    won = store.perform(claim(A))
    assert store.perform(Renew(KEY.id, A, won.fence, 2 * HOUR)) is Ack.OK
    assert store.perform(Complete(KEY.id, A, won.fence, HOUR, b"x")) is Ack.OK
    assert calls == ["find_one_and_update", "update_one", "update_one"]
    assert store.perform(claim(B)).verdict is Verdict.REPLAY
    assert calls[3:] == ["find_one_and_update"]


def test_a_batch_of_any_size_is_one_call_and_one_more_for_its_repeats(store: MongodbStore):
    keys = [Key(f"key-{number}") for number in range(50)]
    calls = calls_of(store)
    won = store.perform_many([claim(A, key) for key in keys])
    done = store.perform_many(
        [Complete(key.id, A, one.fence, HOUR, b"x") for key, one in zip(keys, won, strict=True)]
    )
    assert (done, calls) == ([Ack.OK] * 50, ["bulk_write", "bulk_write"])
    again = store.perform_many([claim(B, key) for key in [*keys, Key("new")]])
    verdicts = [answer.verdict for answer in again]
    assert verdicts == [*[Verdict.REPLAY] * 50, Verdict.WON]
    assert calls[2:] == ["bulk_write", "find"]


def test_owners_of_a_batch_who_lost_their_claims_do_not_fail_the_others(store: MongodbStore):
    keys = [Key(f"key-{number}") for number in range(3)]
    won = store.perform_many([claim(A, key) for key in keys])
    store.perform(Release(keys[1].id, "ann", "why", HOUR))
    answers = store.perform_many(
        [
            Fail(keys[0].id, A, won[0].fence, 0, 5, HOUR),
            Complete(keys[1].id, A, won[1].fence, HOUR, b"x"),
            Complete(keys[2].id, A, won[2].fence, HOUR, b"y"),
        ]
    )
    assert answers == [Ack.OK, Ack.LOST, Ack.OK]
    assert store.perform(Read(keys[0].id)).attempt == 1


# --- a call that arrived, and its reply did not ------------------------------------------------


@pytest.fixture
def proxied(mongodb: Any, mongodb_url: str) -> Iterator[tuple[Proxy, MongodbStore]]:
    with Proxy(mongodb.port) as proxy:
        store = MongodbStore.open(mongodb_url.replace(str(mongodb.port), str(proxy.port)))
        yield proxy, store
        store.close()


def cut(proxy: Proxy, store: MongodbStore, operation: str) -> None:
    """The next reply to this operation does not arrive; the operation is done."""

    def tap(when: str, call: DriverCall) -> None:
        if when == "before" and call.operation == operation:
            store._tap = None
            proxy.arm(Fault("reply", 0, "close"))

    store._tap = tap


@pytest.mark.parametrize("taken_over", [False, True])
def test_a_claim_whose_reply_was_lost_is_still_its_owners(
    proxied: tuple[Proxy, MongodbStore], taken_over: bool
):
    proxy, store = proxied
    if taken_over:
        store.perform(claim(b"x" * 16, lease=0))
    cut(proxy, store, "replace_one" if taken_over else "find_one_and_update")
    with pytest.raises(StoreUnavailableError) as caught:
        store.perform(claim(A))
    assert caught.value.retryable
    assert store.perform(claim(B)).verdict is Verdict.BUSY
    won = store.perform(claim(A))
    assert (won.verdict, won.attempt) == (Verdict.WON, 2 if taken_over else 1)
    assert store.perform(Complete(KEY.id, A, won.fence, HOUR, b"x")) is Ack.OK


def test_a_completion_whose_reply_was_lost_is_repeated_without_harm(
    proxied: tuple[Proxy, MongodbStore],
):
    proxy, store = proxied
    won = store.perform(claim(A))
    cut(proxy, store, "update_one")
    done = Complete(KEY.id, A, won.fence, HOUR, b"x")
    with pytest.raises(StoreUnavailableError):
        store.perform(done)
    assert store.perform(claim(B)).result == b"x"
    assert store.perform(done) is Ack.OK


def test_an_operators_act_whose_reply_was_lost_happened_once(proxied: tuple[Proxy, MongodbStore]):
    proxy, store = proxied
    store.perform(claim(A))
    cut(proxy, store, "replace_one")
    with pytest.raises(StoreUnavailableError):
        store.perform(Release(KEY.id, "ann", "why", HOUR))
    assert [entry.why for entry in store.perform(History(KEY.id))] == ["why"]


def test_a_batch_whose_reply_was_lost_is_an_outage_for_each(proxied: tuple[Proxy, MongodbStore]):
    proxy, store = proxied
    keys = [Key(f"key-{number}") for number in range(3)]
    cut(proxy, store, "bulk_write")
    answers = store.perform_many([claim(A, key) for key in keys])
    assert [type(answer) for answer in answers] == [StoreUnavailableError] * 3
    assert len({id(answer) for answer in answers}) == 3, "each has its own"
    won = store.perform_many([claim(A, key) for key in keys])
    assert [(one.verdict, one.attempt) for one in won] == [(Verdict.WON, 1)] * 3


@pytest.mark.parametrize("kind", ["blocking", "async"])
def test_a_receiver_whose_replies_are_cut_runs_a_handler_once(
    mongodb: Any, mongodb_url: str, kind: str
):
    """Wherever the reply is cut: the runtime asks again with its owner token (P10)."""
    runs: list[str] = []
    with Proxy(mongodb.port) as proxy:
        url = mongodb_url.replace(str(mongodb.port), str(proxy.port))
        with AnyReceiver(url, is_async=kind == "async") as receiver:
            receiver.process("warm", str)
            for number, after in enumerate((0, 10, 60, 200, 260, 330)):
                proxy.arm(Fault("reply", after, "close"))
                key = f"tx-{number}"
                for _ in range(5):
                    try:
                        receiver.process(key, runs.append, key)
                        break
                    except StoreUnavailableError:
                        continue
                assert receiver.process(key, runs.append, key).replayed
                proxy.disarm()
    assert runs == [f"tx-{number}" for number in range(6)]


# --- races ---------------------------------------------------------------------------------------


def test_an_insert_that_lost_a_race_is_decided_by_the_record_that_won(store: MongodbStore):
    """MongoDB answers one of two inserts at the same moment with the error 11000."""
    won = store.perform(claim(A))
    send = store._send

    def racing(places: Any, call: DriverCall) -> Any:
        return DUPLICATE if call.operation == "find_one_and_update" else send(places, call)

    store._send = racing  # type: ignore[method-assign]
    assert store.perform(claim(B)).verdict is Verdict.BUSY
    assert store.perform(claim(A)) == won


def test_what_the_error_of_such_a_race_means():
    from pymongo.errors import BulkWriteError, DuplicateKeyError

    settings = Settings.of("mongodb://host/db")
    call = DriverCall("find_one_and_update")
    assert refused(DuplicateKeyError("E11000", 11000), call, settings) is DUPLICATE
    details = {"writeErrors": [{"index": 1, "code": 11000}], "upserted": [{"index": 0, "_id": "a"}]}
    assert refused(BulkWriteError(details), DriverCall("bulk_write"), settings) is details
    late = {**details, "writeConcernErrors": [{"code": 64, "errmsg": "timed out"}]}
    with pytest.raises(StoreUnavailableError):
        refused(BulkWriteError(late), DriverCall("bulk_write"), settings)
    invalid = {"index": 2, "code": 121, "errmsg": "Document failed validation"}
    mixed = {**details, "writeErrors": [*details["writeErrors"], invalid]}
    with pytest.raises(StoreError, match="refuses a value"):  # not an outage: each goes alone
        refused(BulkWriteError(mixed), DriverCall("bulk_write"), settings)


def test_a_unique_index_that_a_user_added_is_no_race():
    """It would be tried again and again, and then be called an outage. The text has the key: it is not shown."""
    from pymongo.errors import BulkWriteError, DuplicateKeyError

    settings = Settings.of("mongodb://host/db")
    text = 'E11000 duplicate key error collection: db.twicesafe index: value_1 dup key: { value: "tx-9" }'
    wrong = {"index": 0, "code": 11000, "keyPattern": {"value": 1}, "errmsg": text}
    for error, operation in (
        (DuplicateKeyError(text, 11000, wrong), "find_one_and_update"),
        (DuplicateKeyError(text, 11000, wrong), "update_one"),
        (BulkWriteError({"writeErrors": [wrong], "writeConcernErrors": []}), "bulk_write"),
    ):
        with pytest.raises(StoreError, match="a unique index of the collection") as caught:
            refused(error, DriverCall(operation), settings)
        assert type(caught.value) is StoreError
        assert "tx-9" not in str(caught.value)
    race = {"index": 0, "code": 11000, "keyPattern": {"_id": 1}}
    assert refused(DuplicateKeyError("", 11000, race), DriverCall("find_one_and_update"), settings)


@pytest.mark.parametrize("code", [64, 100])
def test_a_write_that_no_majority_has_is_an_outage_with_an_unknown_outcome(code: int):
    from pymongo.errors import WriteConcernError

    error = WriteConcernError("waiting for replication timed out", code, {"code": code})
    with pytest.raises(StoreUnavailableError, match="no majority of the members") as caught:
        refused(error, DriverCall("update_one"), Settings.of("mongodb://host/db"))
    assert caught.value.retryable


RACE = """
import sys
from twicesafe import Key
from twicesafe._core.protocol import ClaimRequest, Verdict
from twicesafe.stores import open_store
store = open_store(sys.argv[1])
owner = sys.argv[2].encode() * 16
print("ready", flush=True)
sys.stdin.readline()
for number in range(60):
    claimed = store.perform(ClaimRequest(Key(f"key-{number}"), owner, 3_600_000))
    if claimed.verdict is Verdict.WON:
        print(number, claimed.fence, flush=True)
store.close()
"""


def test_two_processes_that_race_for_the_same_keys_never_both_win(mongodb_url: str):
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, mongodb_url, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in "ab"
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    outputs = [racer.communicate("go\n")[0] for racer in racers]
    won = [{line.split()[0] for line in output.splitlines()} for output in outputs]
    assert won[0] | won[1] == {str(number) for number in range(60)}
    assert not won[0] & won[1]


DIES = """
import os, signal, sys
from twicesafe import Key
from twicesafe._core.protocol import ClaimRequest
from twicesafe.stores import open_store
store = open_store(sys.argv[1])
store._tap = lambda when, call: when == "after" and os.kill(os.getpid(), signal.SIGKILL)
store.perform(ClaimRequest(Key("order-7", scope=("shop", "charge")), b"d" * 16, 30_000))
"""


def test_a_process_that_is_killed_after_its_claim_is_taken_over_after_its_lease(mongodb_url: str):
    dead = subprocess.run([sys.executable, "-c", DIES, mongodb_url], check=False)
    assert dead.returncode == -9
    clock = FakeClock(wall_clock())
    with closing(MongodbStore(Settings.of(mongodb_url), GivenClock(clock))) as store:
        left = store.perform(Read(KEY.id))
        assert (left.owner, left.attempt) == (b"d" * 16, 1)
        assert store.perform(claim(B)).verdict is Verdict.BUSY
        clock.advance(ms=30_000)  # watched for a whole lease
        taken = store.perform(claim(B))
        assert (taken.verdict, taken.attempt) == (Verdict.WON, 2)
        assert taken.fence > left.fence
        assert store.perform(Complete(KEY.id, b"d" * 16, left.fence, HOUR, b"zombie")) is Ack.LOST


# --- the server ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["blocking", "async"])
def test_a_server_that_is_killed_and_started_again_is_used_again(
    own_server: Callable[..., Any], kind: str
):
    server = own_server("mongodb")
    url = server.url.replace("timeout=120", "timeout=2")
    with AnyReceiver(url, is_async=kind == "async") as receiver:
        assert receiver.process("before", str, "paid").value == "paid"
        server.kill()
        with pytest.raises(StoreUnavailableError, match="did not answer"):
            receiver.process("during", pytest.fail, "no handler starts during an outage")
        server.start()
        for _ in range(50):  # the driver may still believe that it is down
            try:
                again = receiver.process("before", str, "twice")
                break
            except StoreUnavailableError:
                continue
        assert (again.value, again.replayed) == ("paid", True)


async def test_a_cut_does_not_make_callers_fail_each_other(mongodb: Any, mongodb_url: str):
    """A second caller waits for the only connection when that one is cut. PyMongo fails both, and would repeat the
    second one's write on a server that does not support it: that empties the pool each time, for an hour here."""
    with Proxy(mongodb.port) as proxy:
        url = mongodb_url.replace(str(mongodb.port), str(proxy.port))
        url = url.replace("timeout=120", "timeout=3600&pool=1")
        store = AsyncMongodbStore.open(url)
        await store.perform(claim(A, Key("warm")))
        proxy.held = True
        tasks = []
        for name in ("first", "second"):
            tasks.append(asyncio.create_task(store.perform(claim(B, Key(name)))))
            for _ in range(100):  # turns of the event loop: enough to reach the pool's queue
                await asyncio.sleep(0)
        await asyncio.to_thread(proxy.cut)
        proxy.held = False
        try:
            async with asyncio.timeout(120):
                failed = await asyncio.gather(*tasks, return_exceptions=True)
                assert {type(one) for one in failed} == {StoreUnavailableError}
                won = await store.perform(claim(B, Key("second")))
                assert won.verdict is Verdict.WON
        finally:
            await store.close()


@pytest.mark.parametrize("kind", ["blocking", "async"])
def test_the_driver_repeats_writes_only_where_the_server_supports_it(
    own_server: Callable[..., Any], mongodb_url: str, kind: str
):
    member = own_server("mongodb", repl_set_name="rs0")
    for url, repeats in (
        (f"{mongodb_url}&retryWrites=true", False),
        (f"{member.url}&replicaSet=rs0", True),
    ):
        with AnyReceiver(url, is_async=kind == "async") as receiver:
            receiver.process("warm", str)
            store = receiver.receiver.store
            if kind == "async":
                [store] = store._loops._made.values()
            assert store._places.client.options.retry_writes is repeats


def test_a_replica_set_is_read_as_one(own_server: Callable[..., Any]):
    """FerretDB only says that it is a member; so this tries the settings, not the replication."""
    server = own_server("mongodb", repl_set_name="rs0")
    with closing(MongodbStore.open(f"{server.url}&replicaSet=rs0")) as store:
        assert store._places is not None
        assert store._places.one.read_concern.level == "linearizable"
        assert store._places.collection.read_concern.level == "majority"
        assert store._places.collection.write_concern.document == {"w": "majority", "j": True}
        won = store.perform(claim(A))
        assert store.perform(Read(KEY.id)).fence == won.fence
        assert store.perform(Complete(KEY.id, A, won.fence, HOUR, b"x")) is Ack.OK


def test_a_single_server_is_not_asked_for_a_majority_of_reads(store: MongodbStore):
    assert store._places is not None
    assert store._places.one.read_concern.level is None
    assert store._places.one.write_concern.document == {"w": "majority", "j": True}


# --- time ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("off", [-HOUR, HOUR])
def test_a_worker_whose_clock_is_wrong_writes_the_time_of_the_server(mongodb_url: str, off: int):
    wrong = ServiceClock(wall=lambda: wall_clock() + off)
    with closing(MongodbStore(Settings.of(mongodb_url), wrong)) as store:
        before = wall_clock()
        won = store.perform(claim(A))
        row = store.perform(Read(KEY.id))
        assert before - 1000 <= row.changed_at <= wall_clock() + 1000
        assert won.fence == row.changed_at * 1000


def test_the_server_is_asked_for_its_time_twice_a_minute(mongodb_url: str):
    steady = FakeClock(0)
    clock = ServiceClock(steady=steady)
    with closing(MongodbStore(Settings.of(mongodb_url), clock)) as store:
        calls = calls_of(store)
        for _ in range(4):
            store.perform(Read(KEY.id))
            steady.advance(ms=10_000)
        assert calls == ["find_one"] * 3 + ["command", "find_one"]


# --- expiry ----------------------------------------------------------------------------------------


def test_a_retention_beyond_the_year_9999_is_kept(store: MongodbStore):
    won = store.perform(claim(A))
    forever = 9_000 * 365 * 24 * HOUR
    assert store.perform(Complete(KEY.id, A, won.fence, forever, b"x")) is Ack.OK
    assert store.perform(Read(KEY.id)).result == b"x"


# --- records -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("field, value", [("fence", "7"), ("scope", "shop"), ("hold", 1)])
def test_a_field_of_a_wrong_type_is_never_a_new_start(
    store: MongodbStore, mongodb: Any, mongodb_url: str, field: str, value: Any
):
    store.perform(claim(A))
    mongodb.collection(mongodb_url).update_one({}, {"$set": {field: value}})
    with pytest.raises(StoreError, match="the handler does not run"):
        store.perform(claim(B))


def test_other_documents_in_the_collection_are_counted_as_unreadable(
    store: MongodbStore, mongodb: Any, mongodb_url: str
):
    store.perform(claim(A))
    mongodb.collection(mongodb_url).insert_one({"_id": "x", "name": "a customer"})
    stats = store.perform(Survey())
    assert (stats.total, stats.unreadable) == (2, 1)


@pytest.mark.parametrize("start", ["Timeout (", "a\nb.", "a\0b", "^$*[x]"])
def test_a_search_for_an_error_takes_its_text_as_it_is(store: MongodbStore, start: str):
    won = store.perform(claim(A))
    store.perform(Fail(KEY.id, A, won.fence, 0, 5, HOUR, error=f"{start}rest"))
    assert store.perform(Count(10, error=start)) == 1
    assert store.perform(Count(10, error=f"{start}x")) == 0
