"""The report of a crash matrix: every trial, the first bad interleaving, and a verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ._comparison import Trial

__all__ = ["Matrix"]

TITLES: Final = {
    "delivery": "deliveries",
    "crash": "crashes (its process dies there, then the message is delivered again)",
    "kill": "kills (a real process is killed there, then the message is delivered again)",
    "interleaving": "interleavings (two deliveries of the message at once)",
}
WHERE: Final = {
    "delivery": "",
    "crash": "its process dies ",
    "kill": "its process is killed ",
    "interleaving": "two deliveries at once, ",
}
SHOWN: Final = 5
"""How many bad interleavings are listed: where there is one, there are often many."""


@dataclass(frozen=True)
class Matrix:
    """The report of `crash_matrix`: print it, or `check` it."""

    handler: str
    trials: tuple[Trial, ...]
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True if no trial went wrong."""
        return not self.wrong

    @property
    def wrong(self) -> tuple[Trial, ...]:
        """The trials that went wrong, in order."""
        return tuple(trial for trial in self.trials if trial.fault)

    def check(self) -> None:
        """Raise an AssertionError with this report, if any trial went wrong."""
        if self.wrong:
            raise AssertionError(str(self))

    @property
    def verdict(self) -> str:
        """The report's last line: how many trials went wrong, and how the first did."""
        tried = f"{len(self.trials)} trials"
        if self.ok:
            return f"{self.handler} is safe to repeat, as far as {tried} can show"
        first = self.wrong[0]
        return (
            f"{self.handler} is not safe to repeat: {len(self.wrong)} of {tried} went wrong; "
            f"the first: {WHERE[first.kind]}{first.name}: {first.fault}"
        )

    def as_data(self) -> dict[str, Any]:
        """The report as plain values, for JSON."""
        return {
            "handler": self.handler,
            "ok": self.ok,
            "verdict": self.verdict,
            "notes": list(self.notes),
            "trials": [
                {
                    "kind": trial.kind,
                    "name": trial.name,
                    "starts": trial.starts,
                    "fault": trial.fault,
                    "note": trial.note,
                    **({"story": list(trial.story)} if trial.story and trial.fault else {}),
                }
                for trial in self.trials
            ],
        }

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        for kind, title in TITLES.items():
            rows = [trial for trial in self.trials if trial.kind == kind]
            if not rows:
                continue
            yield f"{title}: {len(rows)} tried, {sum(bool(row.fault) for row in rows)} wrong"
            yield from _table(rows if kind != "interleaving" else [r for r in rows if r.fault])
        for trial in self.wrong:
            if trial.story:
                yield "first bad interleaving"
                yield from (f"  {step}" for step in trial.story)
                break
        yield from (f"note: {note}" for note in self.notes)
        yield f"verdict: {self.verdict}"


def _table(rows: Sequence[Trial]) -> Iterator[str]:
    shown = rows[:SHOWN] if rows and rows[0].kind == "interleaving" else rows
    for row in shown:
        yield f"  {'WRONG' if row.fault else 'ok':<5}  {_starts(row.starts):<8}  {row.name}"
        if row.fault or row.note:
            yield f"                   {row.fault or row.note}"
    if len(rows) > len(shown):
        yield f"  … and {len(rows) - len(shown)} more"


def _starts(count: int) -> str:
    return f"{count} start" if count == 1 else f"{count} starts"
