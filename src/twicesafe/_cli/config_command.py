"""``twicesafe config check``, ``show`` and ``schema``: the settings file, before a command uses it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from .._values.settings import refuse_unknown
from ..configuration import SECTIONS, Configuration, Shown, problems, resolve, schema
from ..configuration._documents import FILES
from .exits import USAGE, CommandEnded
from .options import ConfigOption, JsonOption, StoreOption, flag
from .output import Screen, counted, table, visible

__all__ = ["check", "print_schema", "show"]


def check(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="The same as --config.", show_default=False),
    ] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Check the settings file and the variables; status 2 if something is wrong.

    It names every wrong setting with its line. It does not open the store.
    Example: [cyan]twicesafe config check shop.yaml[/]
    """
    screen = Screen(json)
    if file is not None and config is not None:
        raise CommandEnded("name the settings file once: FILE or --config, not both", USAGE)
    config = file or config
    wrong = [error.message for error in problems(config)]
    found = None if wrong else resolve(*SECTIONS, config=config)
    count = 0 if found is None else sum(len(values) for values in found.found.values())
    if json:
        screen.data(
            {"file": _file(found), "valid": not wrong, "settings": count, "problems": wrong}
        )
    for message in wrong:
        screen.say(Text("✗", "bold red"), visible(message))
    if wrong:
        raise typer.Exit(USAGE)
    where = (
        _file(found)
        or f"no {' or '.join(FILES[:2])} here (--config names another); the environment"
    )
    screen.say(Text("✓", "green"), f"{visible(where)} is valid: {counted(count, 'setting')}")


def show(
    section: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SECTION", help=f"One of {', '.join(SECTIONS)}; default: all of them."
        ),
    ] = None,
    changed: Annotated[
        bool, flag("--changed", help="Leave out settings at their default.")
    ] = False,
    store: StoreOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show every setting, its value and where it came from: option, variable, file or default.

    Passwords and secrets are never shown.
    Example: [cyan]twicesafe config show proxy http --changed[/]
    """
    screen = Screen(json)
    names = section or list(SECTIONS)
    refuse_unknown(names, SECTIONS, "section")
    found = resolve(*names, config=config, given={"store": {"url": store}})
    rows = [row for row in found.shown() if not changed or row.origin.kind != "default"]
    if json:
        screen.data({"file": _file(found), "settings": [_row_data(row) for row in rows]})
        return
    made = table("section", "setting", "value", "from")
    made.columns[2].overflow = "fold"
    for row in rows:
        plain = row.origin.kind == "default"
        made.add_row(
            row.section,
            row.name,
            Text(visible(_text(row.value)), "dim" if plain else ""),
            Text(visible(row.origin.place), "dim" if plain else "cyan"),
        )
    if rows:
        screen.out.print(made)
    else:
        screen.say(Text("every setting has its default", "dim"))


def print_schema(json: JsonOption = False) -> None:
    """Print the JSON schema of the settings file, for editors.

    Example: [cyan]twicesafe config schema > twicesafe.schema.json[/]
    """
    Screen(True).data(schema())


def _file(found: Configuration | None) -> str | None:
    return None if found is None or found.document.path is None else str(found.document.path)


def _text(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, tuple | list | frozenset):
        return ", ".join(map(str, sorted(value) if isinstance(value, frozenset) else value)) or "–"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _row_data(row: Shown) -> dict[str, Any]:
    return {
        "section": row.section,
        "setting": row.name,
        "value": _plain(row.value),
        "from": row.origin.kind,
        "place": row.origin.place,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list | frozenset):
        items = [_plain(item) for item in value]
        return sorted(items) if isinstance(value, frozenset) else items
    return value if value is None or isinstance(value, str | int | float) else str(value)
