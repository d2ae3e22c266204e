"""The life of a process with an inbox and an outbox: it forks, or is terminated in mid-work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kill.inbox_life import Life
from tests.kill.inbox_storm import connect, run

HERE = Path(__file__).parent
Run = Callable[..., Any]


@pytest.fixture(
    params=[
        "sqlite",
        "postgres",
        "mariadb",
    ]
)
def shop_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database with a table for effects."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'shop.db'}"
    else:
        url = str(request.getfixturevalue(f"{request.param}_url"))
    ask(url, "CREATE TABLE credits (amount VARCHAR(30) NOT NULL)")
    return url


def ask(url: str, sql: str) -> list[Any]:
    connection = connect(url)
    rows = run(connection, sql)
    connection.commit()
    connection.close()
    return rows


@pytest.mark.skipif(not hasattr(os, "fork"), reason="it forks")
def test_parent_and_child_go_on_after_a_fork(run_script: Run, shop_url: str):
    assert run_script("inbox_life.py", "fork", shop_url) == {
        "child": ["before the fork", "of the child", 2],
        "parent": ["of the parent", "of the child"],
        "failed": [1, 3],
        "messages": 3,
    }
    rows = ask(shop_url, "SELECT amount FROM credits ORDER BY amount")
    assert [row[0] for row in rows] == ["before the fork", "of the child", "of the parent"]


@pytest.mark.parametrize("manner, status", [("polite", 0), ("mute", -signal.SIGTERM)])
def test_a_process_that_is_terminated_in_mid_work_leaves_nothing(
    shop_url: str, manner: str, status: int
):
    """No caller waits for a lease: the next delivery runs at once, and is the first."""
    worker = subprocess.Popen(
        [sys.executable, str(HERE / "inbox_life.py"), manner, shop_url],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdout is not None
    with worker:
        assert worker.stdout.readline() == "at it\n"
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == status
    life = Life(shop_url)
    try:
        assert life.deliver("m-1", "whole") == "whole"
        assert life.outbox.depth().pending == 1
    finally:
        life.inbox.close()
        life.outbox.close()
    assert [row[0] for row in ask(shop_url, "SELECT amount FROM credits")] == ["whole"]
    assert ask(shop_url, "SELECT attempt FROM twicesafe_keys") in ([(1,)], ((1,),))
