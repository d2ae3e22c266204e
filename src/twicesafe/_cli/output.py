"""Output for people and for programs: escaped text, ages, tables and JSON.

Keys come from senders, so they never reach a terminal raw: control characters, ANSI and OSC
sequences, line breaks, and invisible characters such as bidi marks are shown as escapes.
Text styles appear on a terminal only, and never when NO_COLOR is set.
"""

from __future__ import annotations

import json as json_
import os
import sys
import unicodedata
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .._values.records import AuditEntry, Record, State

__all__ = [
    "BETWEEN",
    "STATES",
    "Screen",
    "ago",
    "audit_data",
    "counted",
    "record_data",
    "shortened",
    "state_text",
    "table",
    "visible",
]

STATES: Final[dict[State, tuple[str, str]]] = {
    State.IN_PROGRESS: ("cyan", "a worker is running it"),
    State.COMPLETED: ("green", "done; repeats get the recorded answer"),
    State.FAILED: ("red", "failed permanently; repeats get that failure"),
    State.RELEASED: ("blue", "free: the next delivery runs the handler"),
    State.HELD: ("yellow", "outcome unknown: check, then resolve or release"),
    State.PARKED: ("magenta", "too many attempts: check, then release or resolve"),
    State.FORGOTTEN: ("bright_black", "done and erased; repeats do not run"),
}
"""Per state: its style on a terminal, and what it means for the reader."""

PIPE_WIDTH: Final = 100_000

BETWEEN: Final = " › "
"""Separates the parts of a scope."""

# Controls, formats (bidi marks, joiners), surrogates, private use, unassigned, line separators.
_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\"}


def visible(text: str) -> str:
    """The text, with every character that a terminal would interpret or hide as an escape."""
    return "".join(map(_visible_character, text))


def _visible_character(character: str) -> str:
    if character in _SHORT:
        return _SHORT[character]
    if unicodedata.category(character) not in _HIDDEN:
        return character
    number = ord(character)
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def counted(number: int, thing: str) -> str:
    """1 message, 2 messages."""
    return f"{number:,} {thing}" + ("" if number == 1 else "s")


def shortened(text: str, most: int) -> str:
    """Escaped, and cut in the middle: both ends of a key help to recognize it."""
    shown = visible(text)
    if len(shown) <= most:
        return shown
    tail = (most - 1) // 3
    return f"{shown[: most - 1 - tail]}…{shown[len(shown) - tail :]}"


_UNITS: Final = ((86400, "day"), (3600, "h"), (60, "min"), (1, "s"))


def ago(moment: datetime, now: datetime | None = None) -> str:
    """ "3 min ago", "in 27 s": how far away a moment is."""
    seconds = ((now or datetime.now(UTC)) - moment).total_seconds()
    size = abs(seconds)
    if size < 1:
        return "now"
    length, unit = next(entry for entry in _UNITS if size >= entry[0])
    number = int(size // length)
    plural = "s" if unit == "day" and number > 1 else ""
    span = f"{number} {unit}{plural}"
    return f"{span} ago" if seconds > 0 else f"in {span}"


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

    def place(self, url: str, suffix: str = "") -> None:
        """Print the store's URL on one line, so that it can be copied."""
        if not self.json:
            self.out.print(Text(visible(url) + visible(suffix), "dim"), soft_wrap=True)

    def data(self, document: object, indent: int | None = 2) -> None:
        """Print the JSON document of this command."""
        print(as_json(document, indent), flush=True)

    def stream(self, records: Iterable[Record]) -> None:
        """Print a long list as JSON, record by record, without holding all of it in memory."""
        print('{"records": [', end="")
        for number, record in enumerate(records):
            print(f"{',' if number else ''}\n  {as_json(record_data(record), None)}", end="")
        print('\n], "after": ""}', flush=True)

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
        "created_at": _iso(record.created_at),
        "changed_at": _iso(record.changed_at),
        "lease_until": _iso(record.lease_until),
        "not_before": _iso(record.not_before),
        "expires_at": _iso(record.expires_at),
        "result_bytes": record.result_bytes,
    }


def audit_data(entry: AuditEntry) -> dict[str, Any]:
    return {
        "at": _iso(entry.at),
        "action": entry.action,
        "by": entry.by,
        "why": entry.why,
        "state_before": entry.state_before.value,
    }


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat(timespec="milliseconds")
