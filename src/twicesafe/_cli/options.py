"""The options that commands share, each described once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from .._values.settings import seconds
from ..errors import ConfigurationError

__all__ = [
    "ByOption",
    "ConfigOption",
    "IdOption",
    "JsonOption",
    "KeyArgument",
    "RetentionOption",
    "ScopeOption",
    "StoreOption",
    "WhyOption",
    "YesOption",
    "duration",
    "flag",
    "quantity",
]

_STORE_PANEL = "Store"


def quantity(
    read: Callable[[Any, str], float], least: float = 0, unit: str = ""
) -> Callable[[Any], float]:
    """Parses an option with the reader of its quantity; the error names the nearest right form."""

    def parsed(value: Any) -> float:
        try:
            found = read(value, "")
        except ConfigurationError as error:
            raise typer.BadParameter(error.message.removeprefix("=")) from error
        if found < least:
            raise typer.BadParameter(f"{value!r} is too small: use at least {least:g}{unit}")
        return found

    return parsed


def duration(least: float = 0) -> Callable[[Any], float]:
    """Parses an option that is a duration: ``90`` (seconds), ``90s``, ``1h30m``, ``7d``."""
    return quantity(seconds, least, "s")


def flag(*names: str, help: str, **settings: Any) -> Any:  # noqa: A002 - as typer calls it
    """An option without a value. Some versions of typer would show ``<bool>`` after its name."""
    return typer.Option(*names, help=help, metavar="", show_default=False, **settings)


StoreOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="Store URL. Default: TWICESAFE_STORE_URL, then the settings file, then a SQLite file.",
        rich_help_panel=_STORE_PANEL,
        show_default=False,
    ),
]
ConfigOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="PATH",
        help="Settings file, TOML or YAML, instead of ./twicesafe.toml or .yaml.",
        rich_help_panel=_STORE_PANEL,
        show_default=False,
    ),
]
JsonOption: TypeAlias = Annotated[
    bool,
    flag("--json", help="Print JSON, including errors."),
]
KeyArgument: TypeAlias = Annotated[
    str | None,
    typer.Argument(
        metavar="KEY",
        help="The key's value, exactly as it was sent. After -- if it begins with a dash: -- -x",
        show_default=False,
    ),
]
ScopeOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--scope",
        metavar="PART",
        help="One part of the key's scope; repeat for each part, in order.",
        show_default=False,
    ),
]
IdOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--id",
        metavar="HEX",
        help="Instead of KEY: at least the first 8 hex digits of its id, as shown in logs.",
        show_default=False,
    ),
]
ByOption: TypeAlias = Annotated[
    str, typer.Option("--by", metavar="WHO", help="Your name, for the audit trail.")
]
WhyOption: TypeAlias = Annotated[
    str, typer.Option("--why", metavar="TEXT", help="The reason, for the audit trail.")
]
RetentionOption: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--retention",
        metavar="DURATION",
        parser=duration(0.001),
        help="Keep the record at least this long from now. Default: the retention of the policy.",
        show_default=False,
    ),
]
YesOption: TypeAlias = Annotated[bool, flag("--yes", "-y", help="Do not ask for confirmation.")]
