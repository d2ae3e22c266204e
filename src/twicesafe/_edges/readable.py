"""Words for people, on a terminal or on a page: escaped text, ages, and what a state means.

Keys come from senders, so they are never shown raw. Control characters, ANSI and OSC sequences, line
breaks, and invisible characters such as bidi marks are shown as escapes.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Final

from .._core.durable.run_state import FAILURE, INNER, OUTER
from .._core.searching import named_ids
from .._values.quantities import counted
from .._values.records import State

__all__ = [
    "BETWEEN",
    "MEANINGS",
    "ago",
    "shortened",
    "state_words",
    "step_words",
    "unreadable_words",
    "visible",
]

MEANINGS: Final = {
    State.IN_PROGRESS: "a worker is running it",
    State.COMPLETED: "done; repeats get the recorded answer",
    State.FAILED: "failed permanently; repeats get that failure",
    State.RELEASED: "free: the next delivery runs the handler",
    State.HELD: "outcome unknown: check, then resolve or release",
    State.PARKED: "too many attempts: check, then release or resolve",
    State.SUSPENDED: "sleeps or waits for a signal; it continues when it is due",
    State.FORGOTTEN: "done and erased; repeats do not run",
}
"""What each state means for the reader."""

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


def state_words(state: State) -> str:
    """A state as words: in progress."""
    return state.value.replace("_", " ")


def step_words(name: str) -> str:
    """The name of a step; those that twicesafe gives are put into words."""
    for start, words in _OUR_STEPS.items():
        if name.startswith(start):
            return f"{words} {name.removeprefix(start)[:8]}".rstrip()
    return visible(name)


_OUR_STEPS: Final = {
    FAILURE: "(failed: undone from here)",
    INNER: "(waits for the run)",
    OUTER: "(wakes the run)",
}


def unreadable_words(ids: Collection[str]) -> str:
    """What a list says about records that it had to leave out; empty: there are none."""
    if not ids:
        return ""
    cannot = f"{counted(len(ids), 'record')} cannot be read ({named_ids(ids)})"
    return f"{cannot}: damaged, or written by a newer version"


_HASHES: Final = re.compile(r"(hidden:[0-9a-f]{8})[0-9a-f]{24}\b", re.ASCII)


def shortened(text: str, most: int) -> str:
    """Escaped, and cut in the middle: both ends of a key help to recognize it. Hashes of hidden keys are
    cut to eight digits."""
    shown = _HASHES.sub(r"\1…", visible(text))
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
