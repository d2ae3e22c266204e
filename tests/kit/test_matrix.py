"""`crash_matrix` finds planted bugs and says where; it lets what is right pass, in both modes."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.house.repository import ROOT
from twicesafe import (
    AsyncReceiver,
    ConfigurationError,
    Policy,
    Receiver,
    current_claim,
    current_key,
)
from twicesafe.testing import Matrix, crash_matrix, crash_point


@pytest.fixture
def naive(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModuleType]:
    """The handlers of the example, in their own world."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.chdir(tmp_path)
    import naive_handlers  # pyright: ignore[reportMissingImports]

    yield naive_handlers
    sys.modules.pop("naive_handlers", None)


def line_of(module: ModuleType, text: str) -> int:
    lines = Path(module.__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.strip() == text)


# ------------------------------------------------------------------ the planted bugs


def verify(module: ModuleType, name: str, **options: Any) -> Matrix:
    handler = getattr(module, name)
    return crash_matrix(
        handler, "o-1", snapshot=module.charges, setup=module.clean, lines=True, **options
    )


def test_a_double_charge_is_found_where_it_happens(naive: ModuleType):
    report = verify(naive, "charge")
    first = report.wrong[0]
    assert first.kind == "crash"
    after = line_of(naive, "write_charge(order)") + 1  # the first death after the effect
    assert f"naive_handlers.py:{after} in charge" in first.name
    assert first.fault.startswith("doubled")


def test_a_mark_before_the_effect_loses_it(naive: ModuleType):
    report = verify(naive, "mark_first")
    lost = [trial for trial in report.wrong if trial.fault.startswith("lost")]
    assert "in mark_first: write_charge(order)" in lost[0].name
    assert lost[0].kind == "crash"
    assert report.wrong[0] is lost[0]


def test_check_then_act_survives_crashes_but_not_an_interleaving(naive: ModuleType):
    report = verify(naive, "look_first")
    assert {trial.kind for trial in report.wrong} == {"interleaving"}
    first = report.wrong[0]
    assert "in look_first: write_charge(order)" in first.name
    assert first.fault.startswith("doubled")
    story = "\n".join(first.story)
    stands = story.index("-  A pauses; its lease expires")
    assert "A  before naive_handlers.py" in story[:stands]
    looked_again = story.index("in look_first: if order not in charges():", stands)
    assert story[:looked_again].rstrip().rpartition("\n")[2].startswith("B")


def test_a_replay_with_other_data_is_found_and_where_it_parts(naive: ModuleType):
    report = verify(naive, "draw_again")
    assert "the two runs are equal up to: before naive_handlers.py" in report.verdict
    assert "in draw_again: (WORLD" in report.verdict
    assert "derive ids" in str(report)


def test_the_right_one_passes(naive: ModuleType):
    report = verify(naive, "charge_once")
    assert report.ok, str(report)
    report.check()
    kinds = {kind: sum(t.kind == kind for t in report.trials) for kind in ("crash", "interleaving")}
    assert kinds["crash"] >= 9
    assert kinds["interleaving"] >= 50


# ------------------------------------------------------------------ modes, points, policies


class Shop:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.done: dict[str, str] = {}

    def clear(self) -> None:
        self.lines.clear()
        self.done.clear()

    def state(self) -> Any:
        return [*self.lines, *self.done.values()]

    def append(self, item: str) -> str:
        self.lines.append(item)
        crash_point("line is written")
        return item

    def put(self, item: str) -> str:
        self.done.setdefault(current_key().derive("line").value, item)
        crash_point("line is written")
        return item

    async def look_and_append(self, item: str) -> str:
        found = item in self.lines
        await asyncio.sleep(0)
        if not found:
            self.lines.append(item)
        return item

    async def put_later(self, item: str) -> str:
        await asyncio.sleep(0)
        return self.put(item)


@pytest.fixture
def shop() -> Shop:
    return Shop()


def tried(shop: Shop, handler: Callable[..., Any], **options: Any) -> Matrix:
    return crash_matrix(handler, "tea", snapshot=shop.state, setup=shop.clear, **options)


def named(report: Matrix, kind: str = "crash") -> dict[str, str]:
    return {trial.name: trial.fault for trial in report.trials if trial.kind == kind}


def test_it_dies_around_every_request_and_at_every_mark(shop: Shop):
    assert list(named(tried(shop, shop.put))) == [
        "before claim",
        "after claim",
        "as the handler starts",
        "line is written",
        "after the handler, with nothing recorded",
        "before complete",
        "after complete",
    ]


def test_async_handlers_are_switched_at_their_awaits(shop: Shop):
    report = tried(shop, shop.look_and_append)
    assert any("in look_and_append: await asyncio.sleep(0)" in name for name in named(report))
    first = next(trial for trial in report.wrong if trial.kind == "interleaving")
    assert "in look_and_append: await" in first.name
    assert any("at the await of" in name for name in named(report))
    assert tried(shop, shop.put_later).ok


def test_handlers_in_every_shape(shop: Shop):
    class Callable:
        def __call__(self, item: str) -> str:
            return shop.put(item)

    class Awaitable:
        async def __call__(self, item: str) -> str:
            return shop.put(item)

    world = {"snapshot": shop.state, "setup": shop.clear, "interleavings": 3}
    for handler in (Callable(), Awaitable(), shop.put):
        assert crash_matrix(handler, "tea", **world, lines=True).ok
    assert crash_matrix(functools.partial(shop.put_later, "tea"), **world).ok
    assert crash_matrix(functools.partial(shop.put, item="tea"), **world, lines=True).ok


def test_async_worlds_are_asked_on_a_loop(shop: Shop):
    async def state() -> Any:
        await asyncio.sleep(0)
        return shop.state()

    async def clear() -> None:
        shop.clear()

    assert crash_matrix(shop.put_later, "tea", snapshot=state, setup=clear).ok


async def test_it_refuses_to_start_inside_a_loop(shop: Shop):
    with pytest.raises(ConfigurationError, match="plain test"):
        tried(shop, shop.put_later)


def test_what_is_held_for_an_operator_did_no_harm(shop: Shop):
    report = tried(shop, shop.append, policy=Policy(takeover="hold"))
    crashed = [trial for trial in report.trials if trial.kind == "crash"]
    assert [trial.note for trial in crashed].count("waits for an operator") == 5
    assert report.ok


def test_a_zombie_that_asks_its_claim_stops_in_time(shop: Shop):
    def careful(item: str) -> str:
        current_claim().check()
        if item not in shop.lines:
            shop.lines.append(item)
        return item

    assert tried(shop, careful).ok  # between check and effect there is no point: lines show it
    assert not tried(shop, careful, lines=True).ok


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_on_a_store_of_yours(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
):
    monkeypatch.setattr("twicesafe.testing._simulated_process.BRIEF", 0.2)
    url = f"sqlite:///{tmp_path}/keys.db"
    if mode == "sync":
        with Receiver.open(url) as receiver:
            good = tried(shop, shop.put, receiver=receiver, interleavings=2)
            bad = tried(shop, shop.append, receiver=receiver, interleavings=0)
    else:
        receiver = AsyncReceiver.open(url)
        good = tried(shop, shop.put_later, receiver=receiver, interleavings=2)
        bad = tried(shop, shop.append, receiver=receiver, interleavings=0)
        asyncio.run(receiver.close())
    assert good.ok, str(good)
    assert "stopped at the bound of 2" in str(good)
    assert named(bad)["line is written"].startswith("doubled")


# ------------------------------------------------------------------ handlers that receive by themselves


class Books:
    """An inbox by hand: the mark and the effect in one transaction, or in two."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def clear(self) -> None:
        self.path.unlink(missing_ok=True)
        with contextlib.closing(sqlite3.connect(self.path)) as db, db:
            db.executescript("CREATE TABLE seen (id PRIMARY KEY); CREATE TABLE paid (id)")

    def state(self) -> Any:
        with contextlib.closing(sqlite3.connect(self.path)) as db:
            return db.execute("SELECT id FROM paid").fetchall()

    def together(self, order: str) -> bool:
        with contextlib.closing(sqlite3.connect(self.path, timeout=0.1)) as db, db:
            new = db.execute("INSERT INTO seen VALUES (?) ON CONFLICT DO NOTHING", (order,))
            if new.rowcount:
                crash_point("marked")
                db.execute("INSERT INTO paid VALUES (?)", (order,))
            crash_point("paid")
        return bool(new.rowcount)

    def apart(self, order: str) -> bool:
        with contextlib.closing(sqlite3.connect(self.path)) as db:
            with db:
                new = db.execute("INSERT INTO seen VALUES (?) ON CONFLICT DO NOTHING", (order,))
            crash_point("marked")
            if new.rowcount:
                with db:
                    db.execute("INSERT INTO paid VALUES (?)", (order,))
        return bool(new.rowcount)


def test_a_bare_handler_is_delivered_without_a_receiver(tmp_path: Path):
    books = Books(tmp_path / "books.db")
    options = {"snapshot": books.state, "setup": books.clear, "bare": True, "interleavings": 3,
               "results": False}  # fmt: skip
    good = crash_matrix(books.together, "o-1", **options)
    assert good.ok, str(good)
    assert [name for name in named(good) if "claim" in name] == []
    bad = crash_matrix(books.apart, "o-1", **options)
    assert named(bad)["marked"].startswith("lost")


def test_time_passes_for_a_receiver_inside_the_handler(shop: Shop):
    from twicesafe.stores.memory import MemoryStore
    from twicesafe.testing import FakeClock

    clock = FakeClock()
    stores: list[MemoryStore] = []

    def clean() -> None:
        shop.clear()
        stores[:] = [MemoryStore(now=clock)]

    def receive(item: str) -> str:
        with Receiver(stores[0], policy=Policy(in_flight="reject")) as receiver:
            return receiver.process("tea", shop.put, item).value

    def later() -> None:
        clock.advance(31)

    good = crash_matrix(
        receive, "tea", snapshot=shop.state, setup=clean, bare=True, later=later, interleavings=0
    )
    assert named(good)["line is written"] == ""
    stuck = crash_matrix(
        receive, "tea", snapshot=shop.state, setup=clean, bare=True, interleavings=0
    )
    # Raised, a death is an exception that the handler's own receiver sees: it gives its claim back.
    assert stuck.ok


# ------------------------------------------------------------------ what it says when it cannot tell


def test_a_clean_run_that_fails_is_reported_at_once(shop: Shop):
    def fails(item: str) -> None:
        raise ZeroDivisionError("no tea")

    with pytest.raises(AssertionError, match=r"clean run of .*fails failed: ZeroDivisionError"):
        tried(shop, fails)


def test_a_retry_that_fails_is_harm(shop: Shop):
    def only_once(item: str) -> str:
        if shop.lines:
            raise FileExistsError(item)
        return shop.append(item)

    report = tried(shop, only_once, interleavings=0)
    assert "FileExistsError" in named(report)["line is written"]


def test_deliveries_that_wait_for_each_other_are_reported(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("twicesafe.testing._interleaving.LONGEST_WAIT", 0.05)
    once = threading.Event()

    def waits(item: str) -> str:
        if shop.lines and threading.current_thread() is not threading.main_thread():
            once.wait(60)
        return shop.append(item)

    try:
        report = tried(shop, waits, bare=True, interleavings=2)
    finally:
        once.set()
    assert any("wait for each other" in trial.fault for trial in report.wrong)


def test_a_lock_goes_with_the_dead_and_is_waited_for_by_the_living(shop: Shop):
    lock = threading.Lock()

    def careful(item: str) -> str:
        with lock:
            if item not in shop.lines:
                shop.lines.append(item)
        return item

    report = tried(shop, careful, bare=True, lines=True, interleavings=30)
    assert report.ok, str(report)
    assert any("waits for the other one" in step for t in report.trials for step in t.story)
    assert not lock.locked()


def test_too_many_points_are_refused(shop: Shop):
    def endless(item: str) -> None:
        for _ in range(3000):
            crash_point("again")

    with pytest.raises(ConfigurationError, match="smaller input"):
        tried(shop, endless)


def test_the_report_is_a_table_a_story_and_a_verdict(shop: Shop):
    report = tried(shop, shop.append)
    with pytest.raises(AssertionError) as failed:
        report.check()
    text = str(failed.value)
    assert "WRONG  2 starts  line is written" in text
    assert "first bad interleaving\n  A  before claim\n" in text
    assert text.splitlines()[-1].startswith("verdict: Shop.append is not safe to repeat")
    data = report.as_data()
    assert data["ok"] is False
    assert sum(bool(trial["fault"]) for trial in data["trials"]) == len(report.wrong)


def test_a_tracer_of_others_gets_its_hook_back(shop: Shop):
    def other(*_: Any) -> None: ...

    before = sys.gettrace()
    sys.settrace(other)
    try:
        tried(shop, shop.put, lines=True, interleavings=0)
        assert sys.gettrace() is other
    finally:
        sys.settrace(before)


def test_where_no_line_can_be_a_point_no_hook_is_touched():
    """So that a coverage tool sees what it always saw."""
    seen: list[Any] = []

    def other(*_: Any) -> None: ...

    world: dict[str, Any] = {}

    def look() -> None:
        seen.append(sys.gettrace())
        world["looked"] = True

    class Plain:
        """Not written in a file: there is no line to look for."""

        __call__ = staticmethod(eval("lambda look: look()"))

    before = sys.gettrace()
    sys.settrace(other)
    try:
        crash_matrix(
            Plain(), look, snapshot=lambda: dict(world), setup=world.clear,
            interleavings=0, bare=True,
        )  # fmt: skip
    finally:
        sys.settrace(before)
    assert set(seen) == {other}


async def test_blocking_functions_are_tried_where_an_event_loop_runs():
    """In a notebook, and in `python -m asyncio`, where our pages are pasted."""
    ledger: list[str] = []

    async def charge() -> None:
        ledger.append("charge")

    def seen() -> list[str]:
        return list(ledger)

    def naive() -> None:
        ledger.append("charge")

    report = crash_matrix(naive, snapshot=seen, setup=ledger.clear, interleavings=20)
    assert "doubled" in report.verdict
    with pytest.raises(ConfigurationError, match="from a plain test"):
        crash_matrix(charge, snapshot=seen, setup=ledger.clear)
