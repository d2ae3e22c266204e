"""From what an operator types to one record: by key and scope, or by the digits that logs show."""

from __future__ import annotations

import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from .. import Key, Receiver, Record, State
from .exits import USAGE, Ended
from .output import BETWEEN, visible

__all__ = ["Found", "every", "find"]

PAGE: Final = 500
LEAST_DIGITS: Final = 8


@dataclass(frozen=True, slots=True)
class Found:
    record: Record
    key: Key | None
    """None: found by its id, but forgotten, so its text is gone."""


def find(
    receiver: Receiver, value: str | None, scope: Sequence[str] | None, digits: str | None
) -> Found:
    """The one record that is meant. Raises `Ended` that says what to type instead."""
    if (value is None) == (digits is None):
        raise Ended("name one key: KEY with its --scope parts, or --id HEX", USAGE)
    if digits is not None:
        if scope:
            raise Ended("an id is the whole key: leave --scope out", USAGE)
        there = _by_digits(receiver, digits.lower())
        return Found(there, there.key)
    assert value is not None
    key = Key(value, scope or (), absolute=True)
    record = receiver.record(key)
    if record is None:
        within = f" in scope {BETWEEN.join(map(visible, scope))}" if scope else " without a scope"
        raise Ended(
            f"there is no record of this key{within}; a scope is part of a key: "
            "`twicesafe keys list` shows both"
        )
    return Found(record, key)


def _by_digits(receiver: Receiver, digits: str) -> Record:
    if len(digits) < LEAST_DIGITS or not set(digits) <= set(string.hexdigits):
        raise Ended(f"--id takes {LEAST_DIGITS} or more hex digits, as errors and logs show", USAGE)
    found: list[Record] = []
    for record in every(receiver):
        if record.id.hex().startswith(digits):
            found.append(record)
            if len(digits) == 64 or len(found) > 1:
                break
    if not found:
        raise Ended(f"there is no record whose id starts with {digits}")
    if len(found) > 1:
        raise Ended(f"several ids start with {digits}: give more digits", USAGE)
    return found[0]


def every(
    receiver: Receiver, state: State | None = None, scope: Sequence[str] = ()
) -> Iterator[Record]:
    """All records, newest first, a page at a time."""
    after = ""
    while True:
        records, after = receiver.records(state=state, scope=scope, limit=PAGE, after=after)
        yield from records
        if not after:
            return
