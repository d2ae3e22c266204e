"""The options that choose records, the same for ``keys list`` and for actions on all that match."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any, TypeAlias, cast

import typer

from .._core.searching import Conditions, When
from .._values.records import Cause, State
from .options import duration, flag

__all__ = [
    "CauseOption",
    "ErrorOption",
    "OlderThanOption",
    "SinceOption",
    "StateOption",
    "StuckOption",
    "ValueOption",
    "conditions_of",
    "when",
]

_PANEL = "Which keys"


def when() -> Callable[[Any], Any]:
    """Parses how long ago (``2h``) or a moment (``2026-11-17T05:00``, UTC unless it says otherwise)."""
    read = duration(0.001)

    def parsed(value: Any) -> When:
        if "-" not in str(value):
            return read(value)
        try:
            moment = datetime.fromisoformat(value)
        except ValueError as error:
            raise typer.BadParameter(
                f"{value!r} is not a time: write 2h, or 2026-11-17T05:00 (UTC)"
            ) from error
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)

    return parsed


def _option(name: str, metavar: str, words: str, parser: Callable[[Any], Any] | None = None) -> Any:
    more: dict[str, Any] = {} if parser is None else {"parser": parser}
    return typer.Option(
        name, metavar=metavar, help=words, rich_help_panel=_PANEL, show_default=False, **more
    )


StateOption: TypeAlias = Annotated[
    list[State] | None,
    _option("--state", "STATE", f"In this state; repeat for several. One of: {', '.join(State)}."),
]
ValueOption: TypeAlias = Annotated[
    str | None, _option("--value", "VALUE", "With exactly this value, in any scope.")
]
ErrorOption: TypeAlias = Annotated[
    str | None, _option("--error", "TEXT", "The last error starts with this, like TimeoutError.")
]
SinceOption: TypeAlias = Annotated[
    Any,
    _option(
        "--since", "WHEN", "Changed within this time (2h), or since this moment (UTC).", when()
    ),
]
OlderThanOption: TypeAlias = Annotated[
    Any,
    _option(
        "--older-than", "WHEN", "Not changed for this long (7d), or since this moment.", when()
    ),
]
StuckOption: TypeAlias = Annotated[
    bool,
    flag("--stuck", help="In progress, and the lease is over.", rich_help_panel=_PANEL),
]
CauseOption: TypeAlias = Annotated[
    Cause | None,
    _option("--cause", "CAUSE", f"Started again for this reason. One of: {', '.join(Cause)}."),
]


def conditions_of(
    state: list[State] | None,
    scope: list[str] | None,
    value: str | None,
    error: str | None,
    since: When | None,
    older_than: When | None,
    stuck: bool,
    cause: Cause | None,
) -> Conditions:
    """Only those that were given: none means all records. An empty text was given: it is refused, not ignored,
    because a variable that is not set must not make ``keys release --value "$KEY"`` match all keys."""
    given: dict[str, Any] = {
        "state": state or None,
        "scope": tuple(scope) if scope else None,
        "value": value,
        "error": error,
        "since": since,
        "older_than": older_than,
        "stuck": stuck,
        "cause": cause,
    }
    return cast(
        "Conditions", {name: each for name, each in given.items() if each not in (None, False)}
    )
