"""kill -9 of real workers on SQLite: nothing is lost, and nothing is doubled without a cause.

lost           a key without its end, or an end without its effect
explained      an effect done again, where the record says why, and whoever did it before was
               killed or was told that its lease was lost
unexplained    any other effect done again
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from twicesafe import Key, Receiver, Record, State
from twicesafe.clocks import wall_clock
from twicesafe.core.protocol import Claim
from twicesafe.stores.sqlite import SqliteStore
from twicesafe.testing.clock import FakeClock

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")

Run = Callable[..., Any]


class Line(NamedTuple):
    """One effect, as the dead left it on disk."""

    fence: int
    attempt: int
    cause: str
    pid: int


class Aftermath:
    """What is left of a storm: the broker's notes, the ledger and the store."""

    def __init__(self, folder: Path, notes: dict[str, Any]) -> None:
        self.folder = folder
        self.kills = len(notes["killed"])
        self._killed = set(notes["killed"])
        self._lost = {tuple(pair) for pair in notes["lost"]}
        self.told: dict[int, list[str]] = {int(n): told for n, told in notes["values"].items()}
        self.lines: dict[int, list[Line]] = {number: [] for number in self.told}
        ledger = folder / "ledger"
        for line in ledger.read_text().splitlines() if ledger.exists() else ():
            number, fence, attempt, cause, pid = line.split()
            self.lines[int(number)].append(Line(int(fence), int(attempt), cause, int(pid)))
        with Receiver.open(f"sqlite:///{folder / 'keys.db'}") as receiver:
            found = {number: receiver.record(f"key-{number}") for number in self.told}
        assert None not in found.values()
        self.records: dict[int, Record] = {n: r for n, r in found.items() if r is not None}

    def of(self, state: State) -> list[int]:
        return [number for number, record in self.records.items() if record.state is state]

    @property
    def doubled(self) -> list[int]:
        return [number for number, lines in self.lines.items() if len(lines) > 1]

    @property
    def lost(self) -> list[int]:
        return [number for number in self.of(State.COMPLETED) if not self.lines[number]]

    @property
    def unexplained(self) -> list[int]:
        return [number for number in self.doubled if not self._is_explained(number)]

    def _is_explained(self, number: int) -> bool:
        record, lines = self.records[number], sorted(self.lines[number])
        fences = {line.fence for line in lines}
        return (
            len(fences) == len(lines) <= record.attempt
            and max(fences) <= record.fence
            and record.cause is not None
            and all(line.attempt > 1 and line.cause == "lease_expired" for line in lines[1:])
            and all(
                line.pid in self._killed or (number, line.pid) in self._lost for line in lines[:-1]
            )
        )

    @property
    def two_faced(self) -> list[int]:
        """Keys whose callers were not all given the one recorded result."""
        return [
            number
            for number in self.of(State.COMPLETED)
            if self.told[number] != [f"{number}/{self.records[number].fence}"]
        ]

    def check_file(self) -> None:
        with sqlite3.connect(self.folder / "keys.db") as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        connection.close()


def storm(run_script: Run, folder: Path, seed: int, **options: object) -> Aftermath:
    flags = [f"--{name}={value}" for name, value in options.items()]
    aftermath = Aftermath(folder, run_script("storm.py", folder, f"--seed={seed}", *flags))
    aftermath.check_file()
    return aftermath


def test_nothing_is_lost_or_doubled_without_a_cause(run_script: Run, tmp_path: Path, seed: int):
    after = storm(run_script, tmp_path, seed, kills=300)
    assert after.kills == 300
    assert len(after.of(State.COMPLETED)) == len(after.records) > 100
    assert after.lost == []
    assert after.two_faced == []
    assert after.unexplained == []
    assert after.doubled, "no kill fell between effect and record: this run proves nothing"


def test_hold_never_doubles(run_script: Run, tmp_path: Path, seed: int):
    after = storm(run_script, tmp_path, seed, kills=150, takeover="hold")
    assert after.doubled == []
    assert after.lost == []
    held = after.of(State.HELD)
    assert len(after.of(State.COMPLETED)) + len(held) == len(after.records)
    assert after.two_faced == []
    assert all("held" in after.told[number] for number in held)
    assert held, "no kill fell into the work: this run proves nothing"


def test_a_resource_that_knows_fences_is_charged_once(run_script: Run, tmp_path: Path, seed: int):
    after = storm(run_script, tmp_path, seed, kills=150, effect="fenced")
    assert len(after.of(State.COMPLETED)) == len(after.records)
    assert after.two_faced == []
    with sqlite3.connect(tmp_path / "keys.db") as connection:
        (balance,) = connection.execute("SELECT balance FROM account").fetchone()
        charges = dict(connection.execute("SELECT number, fence FROM charges"))
    connection.close()
    assert balance == len(after.records)  # 0 lost, 0 doubled
    assert charges == {number: record.fence for number, record in after.records.items()}
    assert any(record.attempt > 1 for record in after.records.values()), "nothing was taken over"


def test_a_handler_that_kills_its_process_is_parked(run_script: Run, tmp_path: Path):
    notes = run_script("poison.py", tmp_path)
    assert notes["killed"] == 3  # max_attempts: counted when claimed, so no death escapes
    assert notes["refusals"] == ["ParkedError"] * 3
    assert (tmp_path / "ledger").read_text().split() == ["1", "2", "3"]
    with Receiver.open(f"sqlite:///{tmp_path / 'keys.db'}") as receiver:
        record = receiver.record("poison")
    assert record is not None
    assert record.state is State.PARKED
    assert record.attempt == 3


# --- the judge itself: it must see what the storms never showed -------------------------------


def judged(folder: Path, lines: list[str], **notes: Any) -> Aftermath:
    """One completed key, taken over once, and a ledger written by hand."""
    clock = FakeClock(wall_clock())  # read again by the real clock
    store = SqliteStore(folder / "keys.db", now=clock)
    store.perform(Claim(Key("key-1"), b"the dead worker.", 1000))
    clock.advance(2)
    with Receiver(store) as receiver:
        assert receiver.process("key-1", str, "1/2").fence == 2
    (folder / "ledger").write_text("".join(f"{line}\n" for line in lines))
    return Aftermath(folder, {"killed": [11], "lost": [], "values": {"1": ["1/2"]}, **notes})


FIRST, SECOND = "1 1 1 None 11", "1 2 2 lease_expired 12"


def test_the_judge_acquits(tmp_path: Path):
    after = judged(tmp_path, [FIRST, SECOND])
    assert after.doubled == [1]
    assert (after.unexplained, after.lost, after.two_faced) == ([], [], [])


@pytest.mark.parametrize(
    "lines, notes",
    [
        ([FIRST, SECOND], {"killed": []}),  # the first worker lives and was told nothing
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
