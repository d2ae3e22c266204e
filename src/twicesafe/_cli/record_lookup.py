"""Finds the record that an operator means: by key and scope, or by the id digits shown in logs."""

from __future__ import annotations

import shlex
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from .. import Key, Receiver, Record
from .._core.operations import page_of
from .._core.protocol import Browse
from .._edges.readable import unreadable_words
from .exits import USAGE, CommandEnded
from .output import BETWEEN, visible

__all__ = ["FoundRecord", "find", "located"]

LEAST_DIGITS: Final = 8


@dataclass(frozen=True, slots=True)
class FoundRecord:
    record: Record
    key: Key | None
    """None: the record was found by its id, but its key was forgotten, so the text is erased."""


def find(
    receiver: Receiver, value: str | None, scope: Sequence[str] | None, digits: str | None
) -> FoundRecord:
    """The one matching record. Raises `CommandEnded`, which says what to type instead."""
    _check(value, scope, digits)
    if digits is not None:
        there = _by_digits(receiver, digits.lower())
        return FoundRecord(there, there.key)
    assert value is not None
    key = Key(value, scope or (), absolute=True)
    record = receiver.record(key)
    if record is None:
        within = f" in scope {BETWEEN.join(map(visible, scope))}" if scope else " without a scope"
        raise CommandEnded(
            f"there is no record of this key{within}; the scope is part of the key: `twicesafe keys list "
            f"--value {visible(shlex.quote(value))}` finds it in any scope"
        )
    return FoundRecord(record, key)


def located(
    receiver: Receiver, value: str | None, scope: Sequence[str] | None, digits: str | None
) -> Record | None:
    """As `find`; None if the store has no such record."""
    _check(value, scope, digits)
    if digits is None:
        return receiver.record(Key(value or "", scope or (), absolute=True))
    found, _ = receiver.records_page(id=digits, limit=1)
    return found[0] if found else None


def _check(value: str | None, scope: Sequence[str] | None, digits: str | None) -> None:
    if (value is None) == (digits is None):
        raise CommandEnded(
            "give one key: either KEY with its --scope parts, or --id HEX; "
            "`release`, `resolve` and `forget` also take conditions, like --state parked",
            USAGE,
        )
    if digits is not None and scope:
        raise CommandEnded("--id already includes the scope: leave --scope out", USAGE)
    if digits is not None and (
        len(digits) < LEAST_DIGITS or not set(digits) <= set(string.hexdigits)
    ):
        raise CommandEnded(
            f"--id takes {LEAST_DIGITS} or more hex digits, as shown in errors and logs", USAGE
        )


def _by_digits(receiver: Receiver, digits: str) -> Record:
    asked = receiver._asked({"id": digits})
    page = receiver._runtime.run(page_of(Browse(2, **asked)))
    found = page.view()
    if page.unreadable and not found:
        raise CommandEnded(unreadable_words(page.unreadable))
    if not found:
        raise CommandEnded(f"there is no record whose id starts with {digits}")
    if len(found) > 1:
        raise CommandEnded(f"several ids start with {digits}: give more digits", USAGE)
    return found[0]
