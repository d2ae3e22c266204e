"""Four handlers that look right but are wrong, and one that is right. The crash matrix finds out which.

    python naive_handlers.py
    twicesafe verify naive_handlers:mark_first --snapshot naive_handlers:charges \
        --setup naive_handlers:clean --input '"o-1"'
"""

import os
import shutil
import uuid
from pathlib import Path

from twicesafe import current_claim
from twicesafe.testing import crash_matrix

WORLD = Path("world")  # what outlives a process: one file per charge, and marks


def clean() -> None:
    shutil.rmtree(WORLD, ignore_errors=True)
    (WORLD / "charges").mkdir(parents=True)
    (WORLD / "marks").mkdir()


def charges() -> list[str]:
    return sorted(path.read_text() for path in (WORLD / "charges").glob("*.txt"))


def write_charge(text: str) -> None:
    number = uuid.uuid4().hex  # a new charge each time, as at a bank without idempotency keys
    (WORLD / "charges" / f"{number}.txt").write_text(text)


def charge(order: str) -> str:
    """Double charge: dies after the effect, and the retry has no way to know."""
    write_charge(order)
    return f"paid {order}"


def mark_first(order: str) -> str:
    """Mark before effect: dies in between, and the retry believes that it is done."""
    mark = WORLD / "marks" / order
    if not mark.exists():
        mark.touch()
        write_charge(order)
    return f"paid {order}"


def look_first(order: str) -> str:
    """Check, then act: right after any crash; wrong when two look before either acts."""
    if order not in charges():
        write_charge(order)
    return f"paid {order}"


def draw_again(order: str) -> str:
    """Non-deterministic replay: the retry ships under another label than the first run."""
    label = uuid.uuid4().hex[:8]
    (WORLD / "charges" / f"{order}.txt").write_text(f"{order} ships as {label}")
    return f"shipped {order}"


def charge_once(order: str) -> str:
    """Right: the charge is named after the key, and appears whole or not at all."""
    claim = current_claim()
    name = claim.key.derive("charge").short  # the same on every retry
    draft = WORLD / "charges" / f"{name}.{claim.fence}"  # and this one is mine alone
    draft.write_text(order)
    os.replace(draft, WORLD / "charges" / f"{name}.txt")
    return f"paid {order}"


if __name__ == "__main__":
    for handler in (charge, mark_first, look_first, draw_again, charge_once):
        report = crash_matrix(handler, "o-1", snapshot=charges, setup=clean, lines=True)
        print(report.verdict, end="\n\n")
    report.check()
    shutil.rmtree(WORLD)
