"""The bar or the line of a long command, on stderr of a terminal; a pipe gets none."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .output import Screen

__all__ = ["progress_bar", "status_line"]


def progress_bar(screen: Screen, word: str) -> Progress:
    columns: tuple[Any, ...] = (TextColumn(word), BarColumn(), MofNCompleteColumn())
    return Progress(
        *columns,
        TimeRemainingColumn(),
        console=screen.err,
        transient=True,
        disable=not screen.err.is_terminal,
    )


@contextmanager
def status_line(screen: Screen, first: str, said: Callable[[], str]) -> Iterator[None]:
    """A line that says what was done so far, for a command that runs until it is stopped."""
    if screen.json or not screen.err.is_terminal:
        yield
        return
    over = threading.Event()

    def show() -> None:
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
