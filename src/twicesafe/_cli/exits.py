"""How a command fails: every error becomes a message on stderr and an exit status here.

In text mode an error is one line on stderr. With ``--json`` it is one object on stderr:
``{"error": {"type", "message", "exit", "retryable"}}``. Standard output stays empty.
"""

from __future__ import annotations

from typing import Any, Final

import typer

from ..errors import BrokerUnavailableError, StoreError, TwicesafeError, UsageError
from .output import Screen, visible

__all__ = [
    "DONE",
    "NO",
    "READER_LEFT",
    "UNAVAILABLE",
    "USAGE",
    "CommandEnded",
    "in_cli_words",
    "report_error",
]

DONE: Final = 0
NO: Final = 1
USAGE: Final = 2
UNAVAILABLE: Final = 3
READER_LEFT: Final = 141
"""128 + SIGPIPE, as a shell reports other tools whose reader closed the pipe."""

_WRONG_PATHS: Final = (
    FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError
)  # fmt: skip

# Newer versions of typer bundle their own click, so the base class cannot be imported by name.
ParserError: Any = typer.BadParameter.__mro__[2]


class CommandEnded(Exception):  # noqa: N818 - not always an error
    """Ends the command with a message and an exit status."""

    def __init__(self, message: str, status: int = NO, kind: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind or ("UsageError" if status == USAGE else "NotFound")


_CLI_WORDS: Final = {
    "pass force=True": "add --force",
    "with force=True": "with --force",
    "by=…": "--by",
    "after= is": "--after is",
    "value='' is": "--value '' is",
    "error='' is": "--error '' is",
}
"""Python arguments that the library's errors mention, and the CLI options that stand for them."""


def in_cli_words(message: str) -> str:
    for python, ours in _CLI_WORDS.items():
        message = message.replace(python, ours)
    return message


def report_error(screen: Screen, error: BaseException) -> int | None:
    """Print the error and return the exit status; None for an unexpected error (a bug)."""
    retryable, hint = False, ""
    if isinstance(error, CommandEnded):
        status, kind, message = error.status, error.kind, str(error)
    elif isinstance(error, TwicesafeError):
        status, kind = _status(error), type(error).__name__
        message = in_cli_words(str(error))
        retryable = error.retryable
    elif isinstance(error, ParserError):
        # Newer versions of typer ask pydantic, which begins like this.
        message = error.format_message().replace(": Value error, ", ": ")
        status, kind = USAGE, "UsageError"
        context = getattr(error, "ctx", None)
        if context is not None:
            hint = f"see: {context.command_path} --help"
    elif isinstance(error, OSError):
        where = "" if error.filename is None else f": {error.filename}"
        kind, message = type(error).__name__, f"{error.strerror or error}{where}"
        status = USAGE if isinstance(error, _WRONG_PATHS) else UNAVAILABLE
    else:
        return None
    if screen.json:
        screen.fault({"type": kind, "message": message, "exit": status, "retryable": retryable})
    else:
        screen.err.print("✗", visible(message), style="red", markup=False, soft_wrap=True)
        if hint:
            screen.err.print(f"  {hint}", style="dim", markup=False)
    return status


def _status(error: TwicesafeError) -> int:
    if isinstance(error, (StoreError, BrokerUnavailableError)):
        return UNAVAILABLE
    return USAGE if isinstance(error, UsageError) else NO
