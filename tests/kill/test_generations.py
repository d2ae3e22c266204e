"""kill -9 of real workers while generations of records come and go under them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.kill.aftermath import Aftermath
from twicesafe import State
from twicesafe._core.protocol import Sweep
from twicesafe._engines.postgresql import PostgresStore
from twicesafe._engines.postgresql.settings import Settings

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")

ALWAYS = 0.0001


def test_nothing_is_lost_or_doubled_while_generations_turn(
    run_script: Callable[..., Any], postgres_url: str, tmp_path: Path, seed: int
):
    url = f"{postgres_url}?generations=6h"
    store = PostgresStore(replace(Settings.of(url), generations=ALWAYS))
    done, trouble = threading.Event(), []

    def turn_and_drop() -> None:
        try:
            while not done.is_set():
                store.perform(Sweep(500))
        except Exception as error:
            trouble.append(error)

    turning = threading.Thread(target=turn_and_drop)
    turning.start()
    try:
        notes = run_script("storm.py", tmp_path, f"--store={url}", f"--seed={seed}", "--kills=150")
    finally:
        done.set()
        turning.join()
    with store._pool.connection() as connection:
        row = connection.execute("SELECT generation FROM twicesafe_meta").fetchone()
    store.close()
    after = Aftermath(tmp_path, url, notes)
    assert trouble == []
    assert row is not None
    assert row[0] > 30, "hardly a turn fell into the storm: this run proves nothing"
    assert len(after.of(State.COMPLETED)) == len(after.records) > 100
    assert after.lost == []
    assert after.two_faced == []
    assert after.unexplained == []
