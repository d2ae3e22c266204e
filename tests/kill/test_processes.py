"""Opening, migrating and forking: what several processes may do to one store."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from twicesafe import Receiver, SchemaVersionError

OPENING = Path(__file__).with_name("opening.py")
Run = Callable[..., Any]

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


def test_eight_processes_open_a_fresh_store_and_one_migrates_it(store_url: str):
    command = [sys.executable, str(OPENING), store_url]
    openers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(8)
    ]
    for opener in openers:
        assert opener.stdout is not None
        assert opener.stdout.readline() == "ready\n"
    for opener in openers:
        assert opener.stdin is not None
        opener.stdin.write("go\n")
        opener.stdin.flush()
    told = [json.loads(opener.communicate(timeout=60)[0]) for opener in openers]
    assert [opener.returncode for opener in openers] == [0] * 8
    migrated = 0 if store_url.startswith("redis") else 1  # Redis has no schema
    assert sorted(map(len, told)) == [0] * 7 + [migrated]


def test_a_newer_schema_is_refused(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'keys.db'}"
    Receiver.open(url).close()
    with sqlite3.connect(tmp_path / "keys.db") as connection:
        connection.execute("UPDATE twicesafe_meta SET schema = schema + 1")
    connection.close()
    with pytest.raises(SchemaVersionError, match="upgrade twicesafe"):
        Receiver.open(url)
    with sqlite3.connect(tmp_path / "keys.db") as connection:  # and left as it was
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    connection.close()
    assert tables


@forks
def test_parent_and_child_go_on_after_a_fork(run_script: Run, store_url: str):
    assert run_script("forks.py", "idle", store_url) == {
        "child": ["recorded before the fork", "child's"],
        "same owner": False,
        "parent": "parent's",
        "child's, seen by parent": "child's",
    }


@forks
def test_a_child_forked_in_the_handler_does_not_own_the_claim(run_script: Run, store_url: str):
    assert run_script("forks.py", "in_handler", store_url) == {
        "child": ["LeaseLostError", "StillInProgressError"],
        "parent": "parent's",
    }


@forks
def test_a_child_can_neither_complete_nor_release_its_parents_claim(
    run_script: Run, store_url: str
):
    assert run_script("forks.py", "by_hand", store_url) == {
        "child": ["LeaseLostError", None, None],
        "duplicate": "StillInProgressError",
        "parent": "parent's",
    }


@forks
def test_an_async_receiver_goes_on_after_a_fork(run_script: Run, store_url: str):
    assert run_script("forks.py", "event_loop", store_url) == {
        "child": ["recorded before the fork", "child's"],
        "parent": "child's",
    }
