"""The judge of a storm: what the dead left behind, and whether it can be explained.

lost           a key without its end, or an end without its effect
explained      an effect done again, where the record says why, and the earlier worker was
               killed or got LeaseLostError
unexplained    any other effect done again
two-faced      a key whose callers were not all given the one recorded result
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from twicesafe import Receiver, Record, State


class Line(NamedTuple):
    """One effect, as the dead left it on disk."""

    fence: int
    attempt: int
    cause: str
    pid: int


class Aftermath:
    """What is left of a storm: the broker's notes, the ledger and the store."""

    def __init__(self, folder: Path, url: str, notes: dict[str, Any]) -> None:
        self.kills = len(notes["killed"])
        self._killed = set(notes["killed"])
        self._lost = {tuple(pair) for pair in notes["lost"]}
        self.told: dict[int, list[str]] = {int(n): told for n, told in notes["values"].items()}
        self.lines: dict[int, list[Line]] = {number: [] for number in self.told}
        ledger = folder / "ledger"
        for line in ledger.read_text().splitlines() if ledger.exists() else ():
            number, fence, attempt, cause, pid = line.split()
            self.lines[int(number)].append(Line(int(fence), int(attempt), cause, int(pid)))
        with Receiver.open(url) as receiver:
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
        """Keys whose callers were not all given the one recorded result.

        Held is no result: an owner that was slow, not dead, may still end what is held meanwhile.
        """
        return [
            number
            for number in self.of(State.COMPLETED)
            if not {*self.told[number]} <= {"held", f"{number}/{self.records[number].fence}"}
        ]


def check_inbox(notes: dict[str, Any]) -> None:
    """In a transaction: every key was charged once, with its record; every answer was the same one."""
    numbers = [number for number, _ in notes["charges"]]
    assert numbers == list(range(1, notes["keys"] + 1)), "lost or doubled"
    assert notes["balance"] == notes["keys"], "the balance is another"
    assert notes["records"] == [[1, notes["keys"]]], "effect and record do not agree"
    charged = {str(number): f"{number}/{fence}" for number, fence in notes["charges"]}
    assert {key: [value] for key, value in charged.items()} == notes["values"], "other answers"
