"""What is due on Redis: one round trip on a server, and no run is lost between two writes in a Cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest

from tests.stores.test_redis_conformance import Redis
from twicesafe import Key, StoreUnavailableError
from twicesafe._core.driving import drive
from twicesafe._core.durable.run_requests import (
    FailRun,
    FindDue,
    LoadRun,
    RecordStep,
    Restart,
    Signal,
    StartRun,
    Submit,
    Suspend,
    TidyRuns,
)
from twicesafe._core.protocol import Ack, Complete, Read, Verdict
from twicesafe._engines.redis import RedisStore
from twicesafe._engines.redis.due_index import LATEST, MARK, PARTS
from twicesafe._engines.redis.servers import slot_of
from twicesafe._values.steps import StepState
from twicesafe.testing import Place

KEY = Key("order-7")
A, B = b"a" * 16, b"b" * 16
HOUR = 3_600_000


class Bench:
    """A store whose clock is set, and programs that stop where a process dies."""

    def __init__(self, engine: str, folder: Path) -> None:
        self._kind = type("Kind", (Redis,), {"engine": engine})()
        self._place = Place(folder)
        self.store = self._kind.open_store(self._place)

    def perform(self, ask: Any) -> Any:
        return self.store.perform(ask)

    def advance(self, ms: int) -> None:
        self._kind.advance(self._place, ms)

    def dies(self, ask: Any, after: int, meanwhile: Callable[[], Any] | None = None) -> None:
        """The process that sends this request dies after so many round trips."""
        program = self.store.programs.perform(ask)
        command = next(program)
        for number in range(after):
            if number and meanwhile is not None:
                meanwhile()
            reply = self.store._execute(command)
            if number < after - 1:
                command = program.send(reply)
        program.close()

    def found(self, functions: tuple[str, ...] | None = None, limit: int = 100) -> list[str]:
        due = self.perform(FindDue(limit, HOUR, functions))
        return [run.key.value for run in due.runs]

    def entries(self) -> int:
        """How many entries the index has."""
        names = [self.store.programs._index(part)[0] for part in range(PARTS)]
        return sum(self._kind._client(name).zcard(name) for name in names)


@pytest.fixture
def cluster(valkey_cluster: Any, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench("valkey_cluster", tmp_path)
    yield bench
    bench.store.close()


@pytest.fixture
def single(valkey: Any, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench("valkey", tmp_path)
    yield bench
    bench.store.close()


def start(owner: bytes = A, key: Key = KEY, lease: int = 60_000, **more: Any) -> StartRun:
    settings = {"function": "shop.checkout", "arguments": b"j[]", **more}
    return StartRun(key, owner, lease, **settings)


def submit(key: Key = KEY, function: str = "shop.checkout") -> Submit:
    return Submit(key, A, HOUR, function=function, arguments=b"j[]")


def suspended(bench: Bench, key: Key = KEY) -> None:
    """A run that waits for a signal for an hour."""
    mine = bench.perform(start(key=key))
    wait = RecordStep(key.id, A, mine.fence, "approval", "wait", StepState.WAITING)
    assert bench.perform(wait) is Ack.OK
    assert bench.perform(Suspend(key.id, A, mine.fence, HOUR, ("approval",))) is Ack.OK


# --- one server ------------------------------------------------------------------------------


def test_on_one_server_every_request_is_one_round_trip(single: Bench) -> None:
    sent: list[Any] = []
    single.store._tap = lambda when, command: sent.append(command) if when == "before" else None

    def cost(ask: Any) -> Any:
        sent.clear()
        answer = single.perform(ask)
        assert len(sent) == 1, ask
        return answer

    mine = cost(start())
    assert cost(RecordStep(KEY.id, A, mine.fence, "charge", "run", result=b"r")) is Ack.OK
    assert cost(Suspend(KEY.id, A, mine.fence, HOUR)) is Ack.OK
    assert cost(Restart(KEY.id, "ann", "", HOUR)) is Ack.OK
    again = cost(start(B))
    assert cost(FailRun(KEY.id, B, again.fence, 0, 5, HOUR)) is Ack.OK
    assert cost(Signal(KEY.id, "approval", b"x", HOUR)) is True
    assert cost(submit(Key("other"))).verdict is Verdict.WON
    assert len(cost(LoadRun(KEY.id)).steps) == 1
    single.perform(FindDue(10, HOUR))
    assert cost(FindDue(10, HOUR)).runs == [], "nothing is due"


def test_a_run_its_record_and_its_steps_are_in_one_slot(cluster: Bench) -> None:
    programs = cluster.store.programs
    names = programs.key(KEY.id), programs.trail(KEY.id), programs.run_key(KEY.id)
    assert len({slot_of(name) for name in names}) == 1
    parts = [programs._index(part) for part in range(PARTS)]
    assert all(slot_of(index) == slot_of(functions) for index, functions in parts)
    assert len({slot_of(index) * 3 // 16384 for index, _ in parts}) == 3, "every node has some"


def test_steps_have_no_time_to_live_and_go_after_their_record(single: Bench) -> None:
    mine = single.perform(start(lease=1))
    single.perform(RecordStep(KEY.id, A, mine.fence, "charge", "run", result=b"r"))
    run = single.store.programs.run_key(KEY.id)
    client = single._kind._client(run)
    assert client.pttl(run) == -1
    single.perform(Complete(KEY.id, A, mine.fence, HOUR, b"x"))
    assert client.pttl(run) == -1
    single.advance(HOUR // 2)
    single.perform(TidyRuns(100))
    assert client.exists(run) == 1, "its record is there"
    single.advance(HOUR)
    assert single.perform(TidyRuns(100)) == (1, b"")
    assert client.exists(run) == 0
    assert single.entries() == 0


def test_runs_of_other_functions_do_not_hide_ours(single: Bench) -> None:
    mine = Key("mine")
    keys = (Key(f"theirs-{number}") for number in count())
    theirs = [*islice((key for key in keys if key.id[0] % PARTS == mine.id[0] % PARTS), 520)]
    for key in theirs:  # more than one page of that part of the index
        assert single.perform(submit(key, "theirs")).verdict is Verdict.WON
    single.advance(1)
    single.perform(submit(mine, "mine"))
    assert single.found(("mine",), limit=5) == ["mine"]
    assert single.found(("mine",), limit=5) == []
    single.advance(HOUR)
    assert len(single.found(("neither",), limit=1000)) == 520, "no completer took them for an hour"


def before(bench: Bench, ask: Any, script: str, meanwhile: Callable[[], Any]) -> Any:
    """Perform this; `meanwhile` happens before its call of this script."""
    done: list[str] = []

    def execute(commands: list[Any]) -> list[Any]:
        if commands[0].script.name == script and not done:
            done.append(script)
            meanwhile()
        return bench.store._execute(commands)

    answer = drive(bench.store.programs.perform(ask), execute)
    assert done
    return answer


def test_of_two_looks_at_once_one_gets_the_run(single: Bench) -> None:
    single.perform(submit())
    found: list[str] = []
    late = before(
        single, FindDue(10, HOUR), "due_move", lambda: found.extend(single.found())
    )  # fmt: skip
    assert found == [KEY.value]
    assert late.runs == []


def ended(bench: Bench) -> None:
    """A run that is over, and whose retention is too."""
    mine = bench.perform(start(lease=1))
    bench.perform(RecordStep(KEY.id, A, mine.fence, "charge", "run", result=b"r"))
    bench.perform(Complete(KEY.id, A, mine.fence, 1, b"x"))
    bench.advance(10)


@pytest.mark.parametrize("script", ["drop", "due_move"])
def test_a_run_that_starts_while_the_last_one_is_removed_is_kept(
    single: Bench, script: str
) -> None:
    ended(single)
    before(single, TidyRuns(10), script, lambda: single.perform(start(B, lease=5)))
    run = single.perform(LoadRun(KEY.id))
    assert run.function == "shop.checkout"
    single.advance(5)
    assert single.found() == [KEY.value]


def test_a_signal_that_comes_while_the_last_run_is_removed_is_kept(single: Bench) -> None:
    ended(single)
    ask = Signal(KEY.id, "approval", b"x", HOUR)
    before(single, TidyRuns(10), "drop", lambda: single.perform(ask))
    again = single.perform(start(B))
    assert [step.name for step in again.steps] == ["approval"]


@pytest.mark.parametrize("first", [b"\x1f", b"\x30"], ids=["damaged", "of a newer version"])
def test_a_record_that_cannot_be_read_keeps_its_steps_and_hides_no_other(
    single: Bench, first: bytes
) -> None:
    mine = single.perform(start(lease=1))
    single.perform(RecordStep(KEY.id, A, mine.fence, "charge", "run", result=b"r"))
    key = single.store.programs.key(KEY.id)
    single._kind._client(key).setrange(key, 0, first)
    single.perform(submit(Key("other")))
    single.advance(10)
    assert single.found() == ["other"]
    single.perform(TidyRuns(10))
    assert [step.name for step in single.perform(LoadRun(KEY.id)).steps] == ["charge"]


# --- a Cluster: two writes -------------------------------------------------------------------


def test_a_mark_without_its_run_is_forgotten(cluster: Bench) -> None:
    cluster.dies(submit(), after=1)
    assert cluster.entries() == 1
    cluster.advance(LATEST)
    assert cluster.found() == []
    assert cluster.entries() == 1, "its run may still come"
    cluster.advance(MARK)
    assert cluster.found() == []
    assert cluster.entries() == 0


def test_no_run_is_written_before_replicas_have_its_mark(cluster: Bench) -> None:
    """The mark could be lost in a failover, and with it the only reason to look at the run."""
    settings = replace(cluster.store.settings, wait_replicas=1, wait_timeout=0.01)
    careful = RedisStore(settings, cluster.store.programs.scripts)
    with closing(careful), pytest.raises(StoreUnavailableError, match="0 of 1 replicas"):
        careful.perform(submit())
    assert cluster.perform(Read(KEY.id)) is None


def test_a_run_whose_sender_died_before_it_was_settled_is_found(cluster: Bench) -> None:
    cluster.dies(submit(), after=2)
    cluster.advance(MARK)
    assert cluster.found() == [KEY.value]
    assert cluster.found() == [], "another completer works on it"


def test_a_look_between_the_mark_and_the_write_loses_nothing(cluster: Bench) -> None:
    """The entry is due, so it is looked at before the signal is written, and put off by an hour."""
    suspended(cluster)
    cluster.advance(60_000)

    def look() -> None:
        assert cluster.found() == []

    cluster.dies(Signal(KEY.id, "approval", b"x", HOUR), after=2, meanwhile=look)
    assert cluster.found() == []
    cluster.advance(MARK)
    assert cluster.found() == [KEY.value]


def test_a_write_that_comes_after_its_mark_is_repeated(cluster: Bench) -> None:
    pauses = [LATEST + 1, 0, 0, 0]
    sent: list[str] = []

    def execute(commands: list[Any]) -> list[Any]:
        sent.append(commands[0].script.name)
        replies = cluster.store._execute(commands)
        if sent[-1] == "due_mark":
            cluster.advance(pauses.pop(0))
        return replies

    answer = drive(cluster.store.programs.perform(submit()), execute)
    assert answer.verdict is Verdict.WON
    assert sent == ["due_mark", "submit_run", "due_mark", "submit_run", "due_settle"]
    assert cluster.found() == [KEY.value]


@pytest.mark.parametrize("ask", ["start", "submit", "suspend", "fail", "restart", "signal"])
def test_nodes_whose_clocks_differ_write_nothing(cluster: Bench, ask: str) -> None:
    suspended(cluster, Key("asleep"))
    mine = cluster.perform(start(key=Key("running")))
    id_ = Key("running").id
    asks = {
        "start": start(),
        "submit": submit(),
        "suspend": Suspend(id_, A, mine.fence, HOUR),
        "fail": FailRun(id_, A, mine.fence, 0, 5, HOUR),
        "restart": Restart(id_, "ann", "", HOUR),
        "signal": Signal(Key("asleep").id, "approval", b"x", HOUR),
    }

    def execute(commands: list[Any]) -> list[Any]:
        replies = cluster.store._execute(commands)
        if commands[0].script.name == "due_mark":
            cluster.advance(LATEST + 1)
        return replies

    before = [cluster.perform(LoadRun(Key(name).id)) for name in (KEY.value, "asleep", "running")]
    with pytest.raises(StoreUnavailableError, match="clocks"):
        drive(cluster.store.programs.perform(asks[ask]), execute)
    after = [cluster.perform(LoadRun(Key(name).id)) for name in (KEY.value, "asleep", "running")]
    assert before == after
    cluster.advance(MARK)
    assert KEY.value not in cluster.found()


def test_a_start_in_a_cluster_is_two_round_trips(cluster: Bench) -> None:
    sent: list[Any] = []
    cluster.store._tap = lambda when, command: sent.append(command) if when == "before" else None
    mine = cluster.perform(start(lease=MARK))
    assert len(sent) == 2
    sent.clear()
    cluster.perform(RecordStep(KEY.id, A, mine.fence, "charge", "run", result=b"r"))
    assert len(sent) == 1
    cluster.advance(MARK)
    assert cluster.found() == [KEY.value], "its worker is gone"


def test_waiters_do_not_put_off_the_look_at_a_run(cluster: Bench) -> None:
    """Every one of their claims marks the run anew."""
    cluster.perform(start(lease=5_000))
    for _ in range(4):
        cluster.advance(1_000)
        assert cluster.perform(start(B)).verdict is Verdict.BUSY
    cluster.advance(1_000)
    assert cluster.found() == [KEY.value]
