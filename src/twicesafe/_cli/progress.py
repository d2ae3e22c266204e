"""The bar of a long command, on stderr of a terminal; a pipe gets none."""

from __future__ import annotations

from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .output import Screen

__all__ = ["progress_bar"]


def progress_bar(screen: Screen, word: str) -> Progress:
    columns: tuple[Any, ...] = (TextColumn(word), BarColumn(), MofNCompleteColumn())
    return Progress(
        *columns,
        TimeRemainingColumn(),
        console=screen.err,
        transient=True,
        disable=not screen.err.is_terminal,
    )
