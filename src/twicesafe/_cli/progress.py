"""The bar or the line of a long command, on stderr of a terminal; a pipe gets none."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Final

from .output import Screen

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["progress_bar", "status_line", "while_reading"]

SOON: Final = 1.0
"""Seconds after which a search says that it still reads."""


def progress_bar(screen: Screen, word: str) -> Progress:
    # Slow to import, and most commands show none.
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns: tuple[Any, ...] = (TextColumn(word), BarColumn(), MofNCompleteColumn())
    return Progress(
        *columns,
        TimeRemainingColumn(),
        console=screen.err,
        transient=True,
        disable=not screen.err.is_terminal,
    )


@contextmanager
def status_line(
    screen: Screen, first: str, said: Callable[[], str], after: float = 0.0
) -> Iterator[None]:
    """A line that says what was done so far, for a command that runs long. ``after``: seconds without it."""
    if screen.json or not screen.err.is_terminal:
        yield
        return
    over = threading.Event()

    def show() -> None:
        if over.wait(after):
            return
        with screen.err.status(first) as line:
            while not over.wait(0.5):
                line.update(said())

    thread = threading.Thread(target=show, name="twicesafe-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def while_reading(screen: Screen) -> AbstractContextManager[None]:
    """For a question that may read all records: if it takes long, a line says so and counts the seconds."""
    began = time.monotonic()
    words = "reading the records"
    return status_line(screen, words, lambda: f"{words}: {time.monotonic() - began:.0f} s", SOON)
