"""What a fence means in an inbox: it numbers committed records, and two runs can have the same one.

A connection that is lost in mid-handler is rolled back by the server at once, while the handler goes
on. The next run finds no record. The resource of ``examples/fenced_resource.py`` takes one of the two.
"""

from __future__ import annotations

import contextlib
import runpy
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.inbox.conftest import Shop
from twicesafe import StillInProgressError, current_claim

EXAMPLE = Path(__file__).parents[2] / "examples" / "fenced_resource.py"
LOSE = {
    "psycopg": ("SELECT pg_backend_pid()", "SELECT pg_terminate_backend({}, 10000)"),
    "pymysql": ("SELECT CONNECTION_ID()", "KILL {}"),
}


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    return runpy.run_path(str(EXAMPLE))["Ledger"]()


@pytest.mark.parametrize("kind", LOSE)
@pytest.mark.parametrize("late", [True, False])
def test_of_two_runs_with_one_fence_the_resource_takes_one(
    shop_of: Callable[[str], Shop], ledger: Any, kind: str, late: bool
):
    shop = shop_of(kind)
    first, second, operator = shop.door, shop.another(), shop.another()
    entered, go_on = threading.Event(), threading.Event()
    runs: list[tuple[int, bool]] = []

    def post() -> None:
        claim = current_claim()
        assert claim is not None
        runs.append((claim.fence, ledger.post("acct-1", claim.fence, "credit")))

    def loses_its_connection() -> None:
        if not late:
            post()
        entered.set()
        assert go_on.wait(60)
        if late:
            post()
        shop.door.sql("SELECT 1")  # only now it notices

    def worker() -> None:
        first.begin()
        with pytest.raises(Exception):  # noqa: B017, PT011 - the driver's, or ours
            shop.process("m-1", loses_its_connection)

    first.begin()
    number = first.sql(LOSE[kind][0])[0][0]
    first.rollback()
    thread = threading.Thread(target=worker)
    thread.start()
    assert entered.wait(60)
    operator.sql(LOSE[kind][1].format(number))
    outcome = None
    while outcome is None:  # until the server has rolled the first one back
        with contextlib.suppress(StillInProgressError), second.transaction():
            outcome = shop.process("m-1", post, door=second)
    go_on.set()
    thread.join()
    assert [fence for fence, _ in runs] == [1, 1]
    assert sorted(taken for _, taken in runs) == [False, True]
    assert ledger.entries == [(1, "credit")]


@pytest.mark.parametrize("many", [False, True], ids=["one", "batch"])
def test_a_transaction_on_mariadb_holds_its_floor(shop_of: Callable[[str], Shop], many: bool):
    """No sweep raises the floor that it has read: with the next floor, a fence would be given twice."""
    shop = shop_of("pymysql")
    sweeper = shop.another()
    free = "SELECT one FROM twicesafe_meta FOR UPDATE SKIP LOCKED"
    with shop.door.transaction():
        if many:
            shop.accept_many(["one", "two", "three"])
        else:
            shop.accept("one")
        sweeper.begin()
        while_open = len(sweeper.sql(free))
        sweeper.rollback()
    sweeper.begin()
    assert len(sweeper.sql(free)) == while_open + 1
    sweeper.rollback()
