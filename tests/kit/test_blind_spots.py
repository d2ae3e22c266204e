"""No handler that does harm is called safe because the kit looked away; and none that does not, unsafe."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sqlite3
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import strategies as st

from twicesafe import ConfigurationError, Policy, Receiver, UsageError, current_key
from twicesafe.testing import (
    Matrix,
    assert_idempotent,
    assert_idempotent_for,
    crash_matrix,
    deliver_at_least_once,
    run_twice,
)

world: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def _clean() -> None:
    world.clear()


def charge(order: str) -> str:
    world.setdefault("bank", []).append(order)
    return "paid"


def bank() -> Any:
    return list(world.get("bank", []))


def tried(handler: Callable[..., Any], *args: Any, **options: Any) -> Matrix:
    return crash_matrix(
        handler, *(args or ("o-1",)), **{"snapshot": bank, "setup": world.clear, **options}
    )


def faults(report: Matrix, kind: str = "crash") -> dict[str, str]:
    return {trial.name: trial.fault for trial in report.trials if trial.kind == kind}


# ------------------------------------------------------------------ snapshots


def test_a_snapshot_that_shares_the_world_is_copied():
    accounts = {"a": {"cents": 0}}

    def deposit(cents: int) -> None:
        accounts["a"]["cents"] += cents

    def reset() -> None:
        accounts["a"]["cents"] = 0

    options = {"snapshot": accounts.copy, "setup": reset}
    assert not crash_matrix(deposit, 5, **options).ok
    for snapshot in (lambda: accounts, accounts.items, lambda: iter(accounts["a"].items())):
        assert not crash_matrix(deposit, 5, snapshot=snapshot, setup=reset).ok
    reset()
    with pytest.raises(AssertionError, match="doubled"):
        run_twice(deposit, 5, snapshot=accounts.copy)
    with pytest.raises(AssertionError, match="crash"):
        assert_idempotent(deposit, 5, **options)


def test_a_snapshot_that_sees_nothing_is_refused():
    def forgets_to_return() -> None:
        bank()

    with pytest.raises(ConfigurationError, match="changed nothing in the snapshot"):
        tried(charge, snapshot=forgets_to_return)
    with pytest.raises(ConfigurationError, match="changed nothing"):
        assert_idempotent(charge, "o-1", snapshot=forgets_to_return, setup=world.clear)
    with pytest.raises(ConfigurationError, match="changed nothing in the snapshot"):
        assert_idempotent_for(
            charge, st.text(), snapshot=forgets_to_return, setup=world.clear, examples=5
        )
    with pytest.raises(ConfigurationError, match="nothing to compare"):
        run_twice(world.clear)


def test_inputs_that_change_nothing_are_allowed_beside_others():
    def keep_short(order: str) -> None:
        if len(order) < 3:
            world["bank"] = [order]

    assert_idempotent_for(
        keep_short, st.sampled_from(["long", "o-1", "o"]), snapshot=bank, setup=world.clear
    )


def test_objects_without_equality_are_compared_by_what_they_hold():
    class Line:
        def __init__(self, order: str) -> None:
            self.order = order

    def once(order: str) -> None:
        world["lines"] = [Line(order)]

    assert tried(once, snapshot=lambda: world.get("lines")).ok


def test_a_world_that_cannot_be_read_after_a_crash_is_a_finding(tmp_path: Path):
    import json

    file = tmp_path / "order.json"

    def write(order: str) -> str:
        if not file.exists():
            file.touch()
            file.write_text(json.dumps(order))
        return order

    report = tried(
        write, lines=True, interleavings=0, snapshot=lambda: json.loads(file.read_text()),
        setup=lambda: file.unlink(missing_ok=True),
    )  # fmt: skip
    assert "cannot be read: JSONDecodeError" in report.verdict
    assert "file.write_text" in report.verdict
    with pytest.raises(ConfigurationError, match="clean run the snapshot cannot be read: KeyError"):
        tried(charge, snapshot=lambda: world["elsewhere"])


# ------------------------------------------------------------------ answers


def test_another_answer_after_a_crash_is_harm_unless_results_are_ignored():
    def pay(order: str) -> dict[str, str]:
        if order in bank():
            return {"error": "already paid"}
        charge(order)
        return {"status": "paid"}

    report = tried(pay, lines=True, interleavings=0)
    assert "another result" in report.verdict
    assert tried(pay, lines=True, interleavings=0, results=False).ok
    assert "two results" in tried(pay, bare=True, interleavings=0).verdict

    def draws(order: str) -> str:
        world["bank"] = [order]
        return uuid.uuid4().hex

    report = tried(draws)
    assert "two clean runs differ" in str(report)
    assert "another result" in report.verdict


# ------------------------------------------------------------------ points


def test_a_death_between_the_body_of_a_with_and_its_exit(tmp_path: Path):
    """An outside effect inside a transaction, and death before the commit."""
    path = tmp_path / "shop.db"

    def setup() -> None:
        world.clear()
        path.unlink(missing_ok=True)
        with sqlite3.connect(path) as db:
            db.execute("CREATE TABLE paid (id TEXT)")
        db.close()

    def pay(order: str) -> str:
        with contextlib.closing(sqlite3.connect(path)) as db, db:
            if db.execute("SELECT 1 FROM paid WHERE id = ?", (order,)).fetchone() is None:
                db.execute("INSERT INTO paid VALUES (?)", (order,))
                return charge(order)
        return "paid"

    report = tried(pay, lines=True, interleavings=0, setup=setup)
    leaving = {name: fault for name, fault in faults(report).items() if "before leaving" in name}
    assert list(leaving.values()) == ["doubled: ['o-1', 'o-1'] instead of ['o-1']"]
    assert "in pay: with contextlib" in next(iter(leaving))


def test_who_dies_on_the_way_out_of_a_with_leaves_no_lock_behind():
    lock, both = threading.RLock(), threading.Lock()

    def careful(order: str) -> str:
        with lock, both:
            world["bank"] = [order]
        return order

    report = tried(careful, lines=True, interleavings=0)
    assert report.ok, str(report)
    assert sum("before leaving" in name for name in faults(report)) == 1
    assert not both.locked()


def test_awaits_that_do_not_wait_are_points_too():
    async def mark(order: str) -> None:
        world["mark"] = order

    async def put(order: str) -> None:
        charge(order)

    async def mark_first(order: str) -> str:
        if "mark" not in world:
            await mark(order)
            await put(order)
        return "paid"

    report = tried(mark_first)
    assert report.wrong[0].fault.startswith("lost")
    assert "in mark_first: await put(order)" in report.wrong[0].name


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (tmp_path / "marked_shop.py").write_text(
        "from tests.kit.test_blind_spots import charge, world\n\n\n"
        "def mark_first(order):\n"
        "    if 'mark' not in world:\n"
        "        world['mark'] = order\n"
        "        charge(order)\n"
        "    return 'paid'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import marked_shop  # pyright: ignore[reportMissingImports]

    monkeypatch.setattr(marked_shop, "world", world)
    monkeypatch.setattr(marked_shop, "charge", charge)
    yield marked_shop
    sys.modules.pop("marked_shop", None)


def test_lines_of_other_modules_are_named_or_asked_for(shop: ModuleType):
    def view(order: str) -> str:
        return shop.mark_first(order)

    report = tried(view, lines=True, interleavings=0)
    assert "a call into marked_shop.py is one step" in str(report)
    for also in (shop, shop.__file__):
        report = tried(view, lines=[also], interleavings=0)
        assert "lost" in report.verdict
        assert "marked_shop.py:7 in mark_first: charge(order)" in report.verdict


def test_lines_that_are_never_met_are_refused(shop: ModuleType):
    numbers: dict[str, int] = {}
    ask = {"snapshot": numbers.copy, "setup": numbers.clear}
    with pytest.raises(ConfigurationError, match="not written in Python"):
        crash_matrix(numbers.__setitem__, "a", 1, **ask, lines=True)
    with pytest.raises(ConfigurationError, match=r"no line of marked_shop\.py"):
        crash_matrix(numbers.__setitem__, "a", 1, **ask, lines=[shop])
    with pytest.raises(ConfigurationError, match="not a module"):
        tried(charge, lines=[sys])


# ------------------------------------------------------------------ modes


def test_a_handler_is_run_whatever_its_mode_is_hidden_in():
    def in_pool(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        async def wrapper(*args: Any) -> Any:
            return await asyncio.to_thread(function, *args)

        return wrapper

    async def later(order: str) -> str:
        await asyncio.sleep(0)
        return charge(order)

    @functools.wraps(later)
    def passed_on(order: str) -> Any:
        return later(order)

    @functools.wraps(later)
    def run(order: str) -> Any:
        return asyncio.run(later(order))

    for handler in (in_pool(charge), passed_on, run):
        for bare in (False, True):
            report = tried(handler, bare=bare, interleavings=0)
            assert any(map(bool, faults(report).values())), handler
            assert "doubled" in report.verdict


def test_a_generator_was_never_run():
    def yields(order: str) -> Iterator[str]:
        charge(order)
        yield order

    for bare in (False, True):
        with pytest.raises(AssertionError, match="returned a generator"):
            tried(yields, bare=bare)


def test_a_handler_that_ends_its_process_fails():
    def leaves(order: str) -> None:
        charge(order)
        sys.exit(0)

    with pytest.raises(AssertionError, match="the handler exited, with status 0"):
        tried(leaves)


# ------------------------------------------------------------------ keys and messages


def put(order: str) -> str:
    world.setdefault("bank", {}).setdefault(current_key().derive("charge").value, order)
    return order


def test_derived_keys_are_the_same_in_every_trial():
    ask = {"snapshot": lambda: dict(world.get("bank", {})), "setup": world.clear}
    seen = []
    for key in ("k-1", "k-2"):
        with Receiver.open("memory://", policy=Policy(lease=5)) as receiver:
            report = crash_matrix(put, "o-1", **ask, receiver=receiver, key=key, interleavings=0)
            assert report.ok, str(report)
            seen.append(list(world["bank"]))
            assert_idempotent(put, "o-1", **ask)
    assert seen[0] != seen[1]


def test_a_decorated_handler_is_not_tried_through_two_receivers():
    with Receiver.open("memory://") as receiver:
        decorated = receiver.idempotent(key=lambda order: order)(charge)
        with pytest.raises(ConfigurationError, match="__wrapped__"):
            tried(decorated)
        assert not tried(decorated.__wrapped__).ok


def test_every_delivery_has_a_message_of_its_own():
    def spoils(message: dict[str, Any]) -> None:
        if not message.get("seen"):
            message["seen"] = True
            message["items"].append("x")
            charge(message["id"])

    message = {"id": "m-1", "items": []}
    with pytest.raises(AssertionError, match="doubled"):
        run_twice(spoils, message, snapshot=bank)
    assert not tried(spoils, message).ok
    made = deliver_at_least_once(spoils, [message], key=lambda m: m["id"], n=2, shuffle=False)
    assert [delivered.message for delivered in made] == [message] * 2
    assert message == {"id": "m-1", "items": []}


def test_a_world_among_the_arguments_is_reported_and_can_be_bound():
    lines: list[str] = []

    def append(book: list[str], item: str) -> None:
        book.append(item)

    world = {"snapshot": lambda: list(lines), "setup": lines.clear}
    for tool in (crash_matrix, assert_idempotent):
        with pytest.raises(ConfigurationError, match=r"functools\.partial"):
            tool(append, lines, "tea", **world)
    with pytest.raises(ConfigurationError, match=r"functools\.partial"):
        run_twice(append, lines, "tea", snapshot=lambda: list(lines))
    with pytest.raises(AssertionError, match="doubled"):
        run_twice(functools.partial(append, lines), "tea", snapshot=lambda: list(lines))


def test_a_changed_argument_that_is_not_copied_is_reported():
    def tax(order: SimpleNamespace) -> None:
        order.cents += 1
        world["bank"] = [order.cents]

    assert "changes an argument that all deliveries share" in str(
        tried(tax, SimpleNamespace(cents=5))
    )


def test_deliveries_tell_the_mistakes_of_the_test():
    with pytest.raises(KeyError, match="idd"):
        deliver_at_least_once(charge, [{"id": 1}], key=lambda m: m["idd"])

    def yields(message: str) -> Iterator[str]:
        yield message

    with pytest.raises(UsageError, match="is a generator"):
        deliver_at_least_once(yields, ["a"], key=str)

    async def later(order: str) -> str:
        return charge(order)

    made = deliver_at_least_once(later, ["a", "b"], key=str)
    assert sorted(bank()) == ["a", "b"]
    assert {delivered.outcome.value for delivered in made} == {"paid"}


def test_a_message_that_failed_comes_again():
    def fails_first(order: str) -> None:
        if order not in world:
            world[order] = "tried"
            raise TimeoutError("not now")
        charge(order)

    for seed in range(5):
        world.clear()
        made = deliver_at_least_once(fails_first, ["a", "b", "c"], key=str, n=3, seed=seed)
        assert sorted(bank()) == ["a", "b", "c"]
        assert max(delivered.time for delivered in made) <= 3


# ------------------------------------------------------------------ two at once


def test_a_slow_handler_is_not_taken_for_one_that_hangs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("twicesafe.testing._interleaving.LONGEST_WAIT", 0.2)
    monkeypatch.setattr("twicesafe.testing._interleaving.LITTLE", 0.01)
    lock = threading.Lock()

    def slow(order: str) -> str:
        with lock:
            time.sleep(0.1)
            world["bank"] = [order]
        return order

    report = tried(slow, lines=True, bare=True, interleavings=8)
    assert report.ok, str(report)


def test_bounds_mean_what_they_say():
    assert faults(tried(charge, interleavings=0), "interleaving") == {}
    assert not tried(charge, interleavings=0).notes
    with pytest.raises(ConfigurationError, match="interleavings=-1"):
        tried(charge, interleavings=-1)


def test_a_bound_leaves_out_some_of_everything():
    def long(order: str) -> str:
        for _ in range(4):
            order = order.strip()
        world["bank"] = [order]
        return order

    report = tried(long, lines=True, interleavings=60)
    assert "stopped at the bound of 60" in str(report)
    two = [t.name for t in report.trials if t.kind == "interleaving" and " / B " in t.name]
    assert len({name.partition(" / ")[0] for name in two}) > 6  # wherever A pauses
