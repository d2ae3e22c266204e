"""What every store must keep whose server compares versions and no times: DynamoDB and MongoDB."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import pytest

from tests.stores.drivers import AnyReceiver
from tests.stores.mongodb_sockets import sockets_of_the_driver  # noqa: F401 - an autouse fixture
from twicesafe import (
    Key,
    NotStorableError,
    Policy,
    Receiver,
    ResultUnavailableError,
    SchemaVersionError,
)
from twicesafe._core.driving import drive
from twicesafe._core.protocol import (
    Ack,
    Browse,
    ClaimRequest,
    Complete,
    Fail,
    History,
    Read,
    Release,
    Renew,
    Sweep,
    Verdict,
)
from twicesafe._engines.versioned.lease_watch import GivenClock
from twicesafe._values.clocks import wall_clock
from twicesafe._values.records import State
from twicesafe.stores import open_store
from twicesafe.testing import FakeClock

KEY = Key("order-7", scope=("shop", "charge"))
A, B, C = b"a" * 16, b"b" * 16, b"c" * 16
HOUR = 3_600_000


def claim(owner: bytes, lease: int = HOUR) -> ClaimRequest:
    return ClaimRequest(KEY, owner, lease)


class Dynamodb:
    """How a test looks at the record of `KEY`, beside the store."""

    largest = 500_000
    limit = "400 KB"

    def __init__(self, server: Any, url: str) -> None:
        self._client = server.client()
        self._place = {
            "TableName": url.partition("//")[2].partition("?")[0],
            "Key": {"id": {"B": KEY.id}},
        }

    def fields(self) -> dict[str, Any]:
        found: dict[str, Any] = self._client.get_item(**self._place)["Item"]
        return found

    def times(self) -> tuple[float, float]:
        """When it expires, and when the server may delete it."""
        found = self.fields()
        return int(found["expires_at"]["N"]) / 1000, float(found["ttl"]["N"])

    def delete(self) -> None:
        self._client.delete_item(**self._place)

    def mark(self, name: str, value: int) -> None:
        self._client.update_item(
            **self._place,
            UpdateExpression=f"SET {name} = :value",
            ExpressionAttributeValues={":value": {"N": str(value)}},
        )

    def connections(self, store: Any) -> Any:
        return store._clients[False]


class Mongodb:
    largest = 16_000_001
    limit = "16 MB"

    def __init__(self, server: Any, url: str) -> None:
        self._documents = server.collection(url)
        self._where = {"_id": KEY.id.hex()}

    def fields(self) -> dict[str, Any]:
        found: dict[str, Any] = self._documents.find_one(self._where)
        return found

    def times(self) -> tuple[float, float]:
        from datetime import UTC

        found = self.fields()
        expires = found["changed_at"] + 1  # the tests keep it for 1 ms
        return expires / 1000, found["ttl"].replace(tzinfo=UTC).timestamp()

    def delete(self) -> None:
        self._documents.delete_one(self._where)

    def mark(self, name: str, value: int) -> None:
        self._documents.update_one(self._where, {"$set": {name: value}})

    def connections(self, store: Any) -> Any:
        return store._places


@dataclass
class Engine:
    url: str
    record: Any
    closing: ExitStack

    def open(self, options: str = "") -> Any:
        return self.closing.enter_context(closing(open_store(self.url + options)))


@pytest.fixture(params=["dynamodb", "mongodb"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    server = request.getfixturevalue(request.param)
    url = request.getfixturevalue(f"{request.param}_url")
    record = {"dynamodb": Dynamodb, "mongodb": Mongodb}[request.param](server, url)
    with ExitStack() as stack:
        yield Engine(url, record, stack)


@pytest.fixture
def store(engine: Engine) -> Any:
    return engine.open()


def test_only_one_of_two_workers_that_hold_a_key_in_the_same_millisecond_closes_it(store: Any):
    """Both write the same record. One of them closes the key, and the other one finds it closed."""
    now = wall_clock()
    store.programs.clock = store.leases.clock = GivenClock(lambda: now)
    store.perform(ClaimRequest(KEY, A, 1000, hold=True))
    now += HOUR
    first: list[Any] = []

    def late(call: Any) -> Any:
        """Another worker is faster by one write."""
        if call.operation in ("replace_one", "put_item") and "'held'" in repr(call) and not first:
            first.append(store.perform(ClaimRequest(KEY, B, 1000)))
        return store._execute(call)

    second = drive(store.programs.perform(ClaimRequest(KEY, C, 1000)), late)
    assert (first[0].verdict, first[0].closes) == (Verdict.HELD, True)
    assert (second.verdict, second.closes) == (Verdict.HELD, False)


# --- expiry ----------------------------------------------------------------------------------------


def test_a_record_that_the_server_deleted_comes_back_with_a_higher_fence(
    engine: Engine, store: Any
):
    won = store.perform(claim(A))
    store.perform(Complete(KEY.id, A, won.fence, 1, b"x"))
    expires, deleted = engine.record.times()
    assert deleted - expires > 3600, "longer than the largest skew"
    engine.record.delete()  # as the server does, then
    again = store.perform(claim(B))
    assert (again.verdict, again.cause) == (Verdict.WON, None)
    assert again.fence > won.fence
    assert store.perform(Complete(KEY.id, A, won.fence, HOUR, b"zombie")) is Ack.LOST


@pytest.mark.parametrize("state", ["in progress", "completed and claimed again"])
def test_work_in_progress_has_no_time_to_live(engine: Engine, store: Any, state: str):
    won = store.perform(claim(A))
    if state != "in progress":
        store.perform(Complete(KEY.id, A, won.fence, 0, b"x"))
        assert store.perform(claim(B)).verdict is Verdict.WON
    assert "ttl" not in engine.record.fields()


def test_a_sweep_leaves_the_margin_and_then_removes(engine: Engine):
    """A worker whose clock is late must still find the record, or give the new one a higher fence."""
    careful, hasty = engine.open("&skew=1h"), engine.open("&skew=0")
    won = careful.perform(claim(A))
    careful.perform(Complete(KEY.id, A, won.fence, 0, b"x"))
    while hasty.leases.clock.now() * 1000 <= won.fence:
        pass  # within a millisecond the fence of a new record would not be higher
    report, _ = careful.perform(Sweep(100))
    assert (report.removed, report.examined) == (0, 1)
    report, _ = hasty.perform(Sweep(100))
    assert (report.removed, report.examined) == (1, 1)
    assert hasty.perform(claim(B)).fence > won.fence


def test_a_record_that_comes_late_sets_no_fence_back(engine: Engine, store: Any):
    """A write that the driver gave up and repeated may arrive when two later records are gone."""
    clock = FakeClock(wall_clock())
    settings = open_store(f"{engine.url}&skew=0")
    engine.closing.callback(settings.close)
    store = engine.closing.enter_context(closing(type(store)(settings.settings, GivenClock(clock))))
    late: list[Any] = []
    store._tap = lambda when, call: late.append(call)
    fences = []
    for owner in (A, B):
        won = store.perform(claim(owner, 1000))
        fences.append(won.fence)
        assert store.perform(Complete(KEY.id, owner, won.fence, 1000, b"x")) is Ack.OK
        clock.advance(ms=2000)
        assert store.perform(Sweep(10))[0].removed == 1
    store._execute(late[0])
    taken = store.perform(claim(C, 1000))
    assert (taken.verdict, taken.attempt) == (Verdict.WON, 2)
    assert taken.fence > max(fences)
    assert store.perform(claim(C, 1000)).fence == taken.fence
    assert store.perform(Complete(KEY.id, C, taken.fence, HOUR, b"x")) is Ack.OK


# --- records -----------------------------------------------------------------------------------------


def test_a_record_of_a_newer_version_is_refused(engine: Engine, store: Any):
    store.perform(claim(A))
    engine.record.mark("layout", 2)
    with pytest.raises(SchemaVersionError, match="update this twicesafe"):
        store.perform(claim(B))


def test_a_record_of_the_first_layout_is_refused(engine: Engine, store: Any):
    """There an absent attempt was 0, and each write counted in `revision`."""
    store.perform(claim(A))
    engine.record.mark("revision", 1)
    with pytest.raises(SchemaVersionError, match="layout 1"):
        store.perform(claim(B))
    page = store.perform(Browse(10))
    assert (page.rows, len(page.unreadable)) == ([], 1)


def test_a_takeover_does_not_replace_an_answer_that_came_meanwhile(store: Any):
    """The answer has the fence of the claim, and the owner's last write counts no revision."""
    now = wall_clock()
    store.programs.clock = store.leases.clock = GivenClock(lambda: now)
    won = store.perform(claim(A, 1000))
    now += HOUR
    late: list[Any] = []

    def answering(call: Any) -> Any:
        """The owner is late, and faster by one write."""
        takes_over = call.operation == "replace_one" or ":fence" in repr(call)
        if takes_over and not late:
            late.append(store.perform(Complete(KEY.id, A, won.fence, HOUR, b"x")))
        return store._execute(call)

    second = drive(store.programs.perform(claim(B, 1000)), answering)
    assert late == [Ack.OK]
    assert (second.verdict, second.result) == (Verdict.REPLAY, b"x")


def test_an_answer_keeps_nothing_of_earlier_attempts(engine: Engine, store: Any):
    """Not the error of the first one, and not the lease of a renewal; also if another process answers."""
    for other in (store, engine.open()):
        engine.record.delete()
        won = store.perform(claim(A))
        assert store.perform(Fail(KEY.id, A, won.fence, 0, 5, HOUR, "Boom")) is Ack.OK
        won = store.perform(claim(B))
        assert store.perform(Renew(KEY.id, B, won.fence, 2 * HOUR)) is Ack.OK
        assert other.perform(Complete(KEY.id, B, won.fence, HOUR, b"x")) is Ack.OK
        assert not {"error", "lease"} & engine.record.fields().keys()
        row = store.perform(Read(KEY.id))
        assert (row.attempt, row.error, row.lease_until) == (2, "", 0)


def test_a_key_is_parked_at_its_first_attempt(store: Any):
    """The record of a first attempt does not say its number."""
    won = store.perform(claim(A))
    assert store.perform(Fail(KEY.id, A, won.fence, 0, 1, HOUR, "Boom")) is Ack.OK
    assert store.perform(Read(KEY.id)).state is State.PARKED


def test_an_audit_trail_keeps_the_newest_entries(store: Any):
    store.perform(claim(A))
    for number in range(102):
        store.perform(Release(KEY.id, "ann", f"reason {number}", HOUR))
    trail = store.perform(History(KEY.id))
    assert [entry.why for entry in trail] == [f"reason {number}" for number in range(2, 102)]


def test_an_audit_trail_leaves_room_for_the_result(store: Any):
    """Long reasons filled the record: first results were lost, then the key could not be released."""
    store.perform(claim(A))
    for number in range(30):
        why = f"{number} " + "\N{GRINNING FACE}" * 4000
        assert store.perform(Release(KEY.id, "ann", why, HOUR)) is Ack.OK
    trail = store.perform(History(KEY.id))
    assert [entry.why[:2] for entry in trail][-1] == "29"
    assert 2 <= len(trail) < 30
    won = store.perform(claim(B))
    assert store.perform(Complete(KEY.id, B, won.fence, HOUR, b"r" * 262_144)) is Ack.OK
    assert len(store.perform(Read(KEY.id)).result) == 262_144


def test_a_result_that_no_record_can_hold_is_done_without_it(engine: Engine):
    runs = []

    def work() -> str:
        runs.append(1)
        return "x" * engine.record.largest

    with Receiver.open(engine.url, policy=Policy(max_result_bytes=20_000_000)) as receiver:
        with pytest.raises(NotStorableError, match=engine.record.limit):
            receiver.process("big", work)
        with pytest.raises(ResultUnavailableError):
            receiver.process("big", work)
    assert runs == [1]


# --- in whole ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["blocking", "async"])
def test_a_receiver(engine: Engine, kind: str):
    with AnyReceiver(engine.url, is_async=kind == "async") as receiver:
        first = receiver.process("tx-1", str, "paid")
        again = receiver.process("tx-1", str, "twice")
        assert (first.value, again.value, again.replayed) == ("paid", "paid", True)


def test_a_receiver_with_batches(engine: Engine):
    with Receiver.open(engine.url) as receiver:
        outcomes = receiver.process_many(range(20), lambda n: n * n, key=lambda n: f"n-{n % 10}")
        assert len(outcomes) == 20
        assert receiver.stats().total == 10


def _claim_in_child(store: Any, results: Any) -> None:
    results.put(store.perform(claim(B)).verdict)


def test_a_forked_child_has_its_own_connections(engine: Engine, store: Any):
    store.perform(claim(A))
    mine, context = engine.record.connections(store), multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    child = context.Process(target=_claim_in_child, args=(store, results))
    child.start()
    assert results.get() is Verdict.BUSY
    child.join()
    assert engine.record.connections(store) is mine
    assert store.perform(claim(B)).verdict is Verdict.BUSY
