"""The protected functions. Each start is written to a ledger that survives its process.

Annotations here are real classes, not text: some libraries read them as they stand, so this page does
not postpone them.
"""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

__all__ = ["FUNCTIONS", "GIFTS", "Broken", "Receipt", "bind", "start_of"]


class Broken(Exception):  # noqa: N818 - short in a table
    """How a function fails that is asked to."""


@dataclass
class Receipt:
    order: str
    cents: int


GIFTS: dict[str, Any] = {
    "None": None,
    "0": 0,
    "empty text": "",
    "Decimal": Decimal("1.10"),
    "datetime": datetime(2026, 11, 15, 12, 30, tzinfo=UTC),
    "dataclass": Receipt("o-1", 1250),
}

_place: dict[str, Any] = {}
MEETING = threading.Barrier(4)


def bind(
    ledger: str,
    call: Callable[[dict[str, Any]], Any],
    say: Callable[[Any], None],
    word_for: Callable[[str], str],
) -> None:
    """Where starts are written, how protected functions call others, say "in" and hear their end."""
    _place.update(ledger=ledger, call=call, say=say, word_for=word_for)


def start_of(order: dict[str, Any]) -> str:
    return f"{order['function']} {order['tenant']} {order['key']}: "


def _work(order: dict[str, Any]) -> Any:
    start = f"{start_of(order)}{order['word']}\n"
    begun_before = start in Path(_place["ledger"]).read_text()
    ledger = os.open(_place["ledger"], os.O_WRONLY | os.O_APPEND)
    os.write(ledger, start.encode())
    os.close(ledger)
    match order["act"]:
        case "hold" if not begun_before:  # a library may run by itself what a crash left behind
            _place["say"]({"in": order["key"]})
            if _place["word_for"](order["key"]) == "raise":
                raise Broken("asked to fail")
        case "nest":
            _place["call"](order["inner"])
        case "meet":
            _meet()
    return GIFTS[order["function"]] if order["function"] in GIFTS else order["word"]


def _meet() -> None:
    """Several runs are under way at the same time; if one never comes, the others go on."""
    try:
        MEETING.wait(5)
    except threading.BrokenBarrierError:
        MEETING.reset()


def give_text(order: dict[str, Any]) -> str:
    return _work(order)


def give_other_text(order: dict[str, Any]) -> str:
    return _work(order)


def give_none(order: dict[str, Any]) -> None:
    return _work(order)


def give_zero(order: dict[str, Any]) -> int:
    return _work(order)


def give_empty(order: dict[str, Any]) -> str:
    return _work(order)


def give_decimal(order: dict[str, Any]) -> Decimal:
    return _work(order)


def give_datetime(order: dict[str, Any]) -> datetime:
    return _work(order)


def give_receipt(order: dict[str, Any]) -> Receipt:
    return _work(order)


FUNCTIONS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "text": give_text,
    "other text": give_other_text,
    "None": give_none,
    "0": give_zero,
    "empty text": give_empty,
    "Decimal": give_decimal,
    "datetime": give_datetime,
    "dataclass": give_receipt,
}
