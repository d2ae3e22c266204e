"""The options that commands share, each described once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

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
    "flag",
]

_WHERE = "Where"


def flag(*names: str, help: str, **settings: Any) -> Any:  # noqa: A002 - as typer calls it
    """An option without a value; some versions of typer show ``<bool>`` unless told otherwise."""
    return typer.Option(*names, help=help, metavar="", show_default=False, **settings)


StoreOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="The store. Else TWICESAFE_STORE_URL, else twicesafe.toml, else the default file.",
        rich_help_panel=_WHERE,
        show_default=False,
    ),
]
ConfigOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="PATH",
        help="Settings to read instead of ./twicesafe.toml.",
        rich_help_panel=_WHERE,
        show_default=False,
    ),
]
JsonOption: TypeAlias = Annotated[
    bool,
    flag("--json", help="Print JSON, errors included, for programs."),
]
KeyArgument: TypeAlias = Annotated[
    str | None,
    typer.Argument(
        metavar="[KEY]", help="The key's value, as its sender wrote it.", show_default=False
    ),
]
ScopeOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--scope",
        metavar="PART",
        help="One part of the key's scope; repeat it, in order.",
        show_default=False,
    ),
]
IdOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--id",
        metavar="HEX",
        help="Instead of KEY: the first 8 or more digits of its id, as logs show them.",
        show_default=False,
    ),
]
ByOption: TypeAlias = Annotated[
    str, typer.Option("--by", metavar="WHO", help="Who does this; kept in the audit trail.")
]
WhyOption: TypeAlias = Annotated[
    str, typer.Option("--why", metavar="TEXT", help="Why; kept in the audit trail.")
]
RetentionOption: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--retention",
        metavar="SECONDS",
        min=0.001,
        help="Keep it at least so many seconds from now; default: the policy's, in twicesafe.toml.",
        show_default=False,
    ),
]
YesOption: TypeAlias = Annotated[bool, flag("--yes", "-y", help="Do not ask, also on a terminal.")]
