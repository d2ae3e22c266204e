"""Output for people and for programs: tables and JSON, in the words of `_edges.readable`.

Keys come from senders, so they never reach a terminal raw: see `visible`. Text styles appear on a terminal
only, and never when NO_COLOR is set.
"""

from __future__ import annotations

import json as json_
import os
import sys
from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Any, Final, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .._edges.readable import (
    BETWEEN,
    MEANINGS,
    ago,
    shortened,
    step_words,
    unreadable_words,
    visible,
)
from .._values.quantities import bytes_text, counted
from .._values.records import AuditEntry, Record, State
from .._values.steps import StepRecord

__all__ = [
    "BETWEEN",
    "STATES",
    "Screen",
    "ago",
    "audit_data",
    "bytes_text",
    "counted",
    "iso",
    "record_data",
    "shortened",
    "state_text",
    "step_data",
    "step_words",
    "table",
    "visible",
]

_STYLES: Final = {
    State.IN_PROGRESS: "cyan",
    State.COMPLETED: "green",
    State.FAILED: "red",
    State.RELEASED: "blue",
    State.HELD: "yellow",
    State.PARKED: "magenta",
    State.SUSPENDED: "blue",
    State.FORGOTTEN: "bright_black",
}
STATES: Final = {state: (style, MEANINGS[state]) for state, style in _STYLES.items()}
"""Per state: its style on a terminal, and what it means for the reader."""

PIPE_WIDTH: Final = 100_000


def state_text(state: State) -> Text:
    return Text(state.value, STATES[state][0])


def table(*columns: str, header: bool = True) -> Table:
    """A table without a box, with a dim bold header."""
    made = Table(box=None, show_header=header, header_style="bold dim", padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(column)
    return made


class Screen:
    """A command's output: text or one JSON document on ``out``, errors on ``err``."""

    def __init__(self, json: bool) -> None:
        self.json = json
        common: dict[str, Any] = {"highlight": False, "emoji": False, "soft_wrap": False}
        if os.environ.get("NO_COLOR"):
            common["no_color"] = True
        self.out = Console(file=sys.stdout, width=_width_of(sys.stdout), **common)
        self.err = Console(file=sys.stderr, **common)

    @property
    def piped(self) -> bool:
        """Whether the output goes to a program, which needs whole lines."""
        return self.out.width == PIPE_WIDTH

    def say(self, *parts: str | Text) -> None:
        """Print text for people; nothing with ``--json``."""
        if not self.json:
            self.out.print(*parts, markup=False)

    def tell_unreadable(self, ids: Collection[str]) -> None:
        """Name the records that a list had to leave out."""
        if ids:
            self.say(Text("!", "yellow"), unreadable_words(ids))

    def place(self, url: str, suffix: str = "") -> None:
        """Print the store's URL on one line, so that it can be copied."""
        if not self.json:
            self.out.print(Text(visible(url) + visible(suffix), "dim"), soft_wrap=True)

    def data(self, document: object, indent: int | None = 2) -> None:
        """Print the JSON document of this command."""
        print(as_json(document, indent), flush=True)

    def stream(self, records: Iterable[Record], unreadable: Iterable[str]) -> None:
        """Print a long list as JSON, record by record, without holding all of it in memory.

        ``unreadable`` is complete once all records have been read.
        """
        print('{"records": [', end="")
        for number, record in enumerate(records):
            print(f"{',' if number else ''}\n  {as_json(record_data(record), None)}", end="")
        print(f'\n], "after": "", "unreadable": {as_json(list(unreadable), None)}}}', flush=True)

    def fault(self, error: dict[str, Any]) -> None:
        print(as_json({"error": error}, None), file=sys.stderr, flush=True)


def _width_of(stream: TextIO) -> int | None:
    """None: the width of the terminal, or COLUMNS. In a pipe a table row stays on one line, so that
    grep and cut see all of it."""
    return None if stream.isatty() or os.environ.get("COLUMNS") else PIPE_WIDTH


def as_json(document: object, indent: int | None = 2) -> str:
    """ASCII without control characters (DEL included), so that a terminal interprets nothing."""
    return json_.dumps(document, indent=indent, ensure_ascii=True).replace("\x7f", "\\u007f")


# --- the documented field names --------------------------------------------------------------


def record_data(record: Record) -> dict[str, Any]:
    return {
        "id": record.id.hex(),
        "key": record.value,
        "scope": list(record.scope),
        "state": record.state.value,
        "attempt": record.attempt,
        "fence": record.fence,
        "cause": None if record.cause is None else record.cause.value,
        "error": record.error,
        "created_at": iso(record.created_at),
        "changed_at": iso(record.changed_at),
        "lease_until": iso(record.lease_until),
        "not_before": iso(record.not_before),
        "expires_at": iso(record.expires_at),
        "result_bytes": record.result_bytes,
    }


def step_data(step: StepRecord) -> dict[str, Any]:
    return {
        "name": step.name,
        "kind": step.kind,
        "state": step.state.value,
        "attempt": step.attempt,
        "undo": step.undo,
        "created_at": iso(step.created_at),
        "changed_at": iso(step.changed_at),
        "due_at": iso(step.due_at),
    }


def audit_data(entry: AuditEntry) -> dict[str, Any]:
    return {
        "at": iso(entry.at),
        "action": entry.action,
        "by": entry.by,
        "why": entry.why,
        "state_before": entry.state_before.value,
    }


def iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat(timespec="milliseconds")
