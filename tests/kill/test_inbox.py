"""kill -9 of workers, sessions and servers around an inbox: 0 lost, 0 doubled.

``TWICESAFE_KILLS=1000`` runs it at full size.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kill.aftermath import check_inbox

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")

KILLS = int(os.environ.get("TWICESAFE_KILLS", "60"))
Run = Callable[..., Any]


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'shop.db'}"
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.mark.timeout(900)
def test_no_kill_loses_or_doubles_an_effect(
    run_script: Run, database_url: str, tmp_path: Path, seed: int
):
    notes = run_script(
        "inbox_storm.py", tmp_path, f"--store={database_url}", f"--seed={seed}", f"--kills={KILLS}"
    )
    assert len(notes["killed"]) == KILLS
    assert notes["keys"] > KILLS / 4
    check_inbox(notes)


@pytest.mark.timeout(900)
def test_sessions_ended_in_the_server(
    run_script: Run, postgres_url: str, tmp_path: Path, seed: int
):
    notes = run_script(
        *("inbox_storm.py", tmp_path, f"--store={postgres_url}", f"--seed={seed}"),
        *(f"--kills={KILLS // 3}", f"--cut={KILLS}"),
    )
    assert notes["cut"] >= KILLS
    check_inbox(notes)


@pytest.mark.timeout(900)
def test_a_server_that_is_killed_and_restarted(
    run_script: Run, postgres: Any, tmp_path: Path, seed: int
):
    restarts = max(2, KILLS // 50)
    notes = run_script(
        *("inbox_storm.py", tmp_path, "--server=postgres", f"--seed={seed}"),
        *(f"--kills={KILLS // 3}", f"--restarts={restarts}"),
    )
    assert notes["restarts"] == restarts
    check_inbox(notes)


def test_the_storm_finds_an_effect_that_is_written_apart(
    run_script: Run, postgres_url: str, tmp_path: Path, seed: int
):
    notes = run_script(
        *("inbox_storm.py", tmp_path, f"--store={postgres_url}", f"--seed={seed}"),
        *("--kills=60", "--apart"),
    )
    assert notes["balance"] > notes["keys"], "no kill fell between the two: this proves nothing"
