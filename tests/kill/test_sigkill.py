"""kill -9 of real workers: nothing is lost, and nothing is doubled without a cause (`aftermath`)."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kill.aftermath import Aftermath
from twicesafe import Key, Receiver, State
from twicesafe._core.protocol import ClaimRequest
from twicesafe._engines.sqlite import SqliteStore
from twicesafe._values.clocks import wall_clock
from twicesafe.testing._clock import FakeClock

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")

Run = Callable[..., Any]
Storm = Callable[..., Aftermath]


@pytest.fixture
def storm(run_script: Run, store_url: str, tmp_path: Path, seed: int) -> Callable[..., Aftermath]:
    def rage(**options: object) -> Aftermath:
        flags = [f"--{name}={value}" for name, value in options.items()]
        notes = run_script("storm.py", tmp_path, f"--store={store_url}", f"--seed={seed}", *flags)
        if store_url.startswith("sqlite:"):
            check_file(tmp_path / "keys.db")
        return Aftermath(tmp_path, store_url, notes)

    return rage


def check_file(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_nothing_is_lost_or_doubled_without_a_cause(storm: Storm, store_url: str):
    kills = 150 if store_url.startswith("sqlite:") else 300
    after = storm(kills=kills)
    assert after.kills == kills
    assert len(after.of(State.COMPLETED)) == len(after.records) > 100
    assert after.lost == []
    assert after.two_faced == []
    assert after.unexplained == []
    if not after.doubled:  # chance decides where kills fall
        pytest.skip("no kill fell between effect and record: this run proves nothing")


def test_hold_never_doubles(storm: Storm):
    after = storm(kills=100, takeover="hold")
    assert after.doubled == []
    assert after.lost == []
    held = after.of(State.HELD)
    assert len(after.of(State.COMPLETED)) + len(held) == len(after.records)
    assert after.two_faced == []
    assert all("held" in after.told[number] for number in held)
    if not held:  # chance decides where kills fall
        pytest.skip("no kill fell into the work: this run proves nothing")


def test_a_resource_that_knows_fences_is_charged_once(storm: Storm, tmp_path: Path):
    after = storm(kills=100, effect="fenced")
    assert len(after.of(State.COMPLETED)) == len(after.records)
    assert after.two_faced == []
    with sqlite3.connect(tmp_path / "resource.db") as connection:
        (balance,) = connection.execute("SELECT balance FROM account").fetchone()
        charges = dict(connection.execute("SELECT number, fence FROM charges"))
    connection.close()
    assert balance == len(after.records)  # 0 lost, 0 doubled
    assert charges == {number: record.fence for number, record in after.records.items()}
    assert any(record.attempt > 1 for record in after.records.values()), "nothing was taken over"


def test_a_handler_that_kills_its_process_is_parked(
    run_script: Run, store_url: str, tmp_path: Path
):
    notes = run_script("poison.py", tmp_path, store_url)
    assert notes["killed"] == 3  # max_attempts: counted when claimed, so no death escapes
    assert notes["refusals"] == ["ParkedError"] * 3
    assert (tmp_path / "ledger").read_text().split() == ["1", "2", "3"]
    with Receiver.open(store_url) as receiver:
        record = receiver.record("poison")
    assert record is not None
    assert record.state is State.PARKED
    assert record.attempt == 3


# --- the judge itself: it must see what the storms never showed -------------------------------


def judged(folder: Path, lines: list[str], **notes: Any) -> Aftermath:
    """One completed key, taken over once, and a ledger written by hand."""
    clock = FakeClock(wall_clock())  # read again by the real clock
    store = SqliteStore(folder / "keys.db", now=clock)
    store.perform(ClaimRequest(Key("key-1"), b"the dead worker.", 1000))
    clock.advance(2)
    with Receiver(store) as receiver:
        assert receiver.process("key-1", str, "1/2").fence == 2
    (folder / "ledger").write_text("".join(f"{line}\n" for line in lines))
    url = f"sqlite:///{folder / 'keys.db'}"
    return Aftermath(folder, url, {"killed": [11], "lost": [], "values": {"1": ["1/2"]}, **notes})


FIRST, SECOND = "1 1 1 None 11", "1 2 2 lease_expired 12"


def test_the_judge_acquits(tmp_path: Path):
    after = judged(tmp_path, [FIRST, SECOND])
    assert after.doubled == [1]
    assert (after.unexplained, after.lost, after.two_faced) == ([], [], [])


@pytest.mark.parametrize(
    "lines, notes",
    [
        ([FIRST, SECOND], {"killed": []}),  # the first worker lives and got no error
        ([FIRST, FIRST], {}),  # one fence, two effects
        ([FIRST, "1 2 2 None 12"], {}),  # started again for no reason
        ([FIRST, SECOND, "1 3 3 lease_expired 13"], {"killed": [11, 12]}),  # behind the record
    ],
)
def test_the_judge_convicts_a_double(tmp_path: Path, lines: list[str], notes: dict[str, Any]):
    assert judged(tmp_path, lines, **notes).unexplained == [1]


def test_the_judge_convicts_a_loss_and_a_second_result(tmp_path: Path):
    after = judged(tmp_path, [], values={"1": ["1/1", "1/2"]})
    assert after.lost == [1]
    assert after.two_faced == [1]
