"""``twicesafe keys list`` and ``show``: read-only views of the keys in the store."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer
from rich.table import Table
from rich.text import Text

from .. import Key, Receiver, Record
from .._core.operations import page_of
from .._core.protocol import Browse
from .._core.searching import Browsing
from .._values.records import AuditEntry, State
from .._values.steps import StepState
from ..archive import Archive
from ..stores._urls import mask
from .options import ConfigOption, IdOption, JsonOption, KeyArgument, ScopeOption, StoreOption, flag
from .output import (
    BETWEEN,
    STATES,
    Screen,
    ago,
    audit_data,
    record_data,
    shortened,
    state_text,
    step_data,
    step_words,
    table,
    visible,
)
from .progress import while_reading
from .record_lookup import find, located
from .search_options import (
    CauseOption,
    ErrorOption,
    OlderThanOption,
    SinceOption,
    StateOption,
    StuckOption,
    ValueOption,
    conditions_of,
)
from .settings import opened, settle

__all__ = ["list_keys", "show_key"]

ERROR_CELLS = 18
"""Only if a record of the page has an error."""


_STEP_STYLES = {StepState.DONE: "green", StepState.STARTED: "yellow", StepState.WAITING: "cyan"}


def list_keys(
    state: StateOption = None,
    scope: ScopeOption = None,
    value: ValueOption = None,
    error: ErrorOption = None,
    since: SinceOption = None,
    older_than: OlderThanOption = None,
    stuck: StuckOption = False,
    cause: CauseOption = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, max=10_000, help="Keys per page.")
    ] = 20,
    after: Annotated[
        str,
        typer.Option(
            "--after",
            metavar="MARK",
            help="Show the next page: the mark that the last page printed.",
            show_default=False,
        ),
    ] = "",
    all_: Annotated[bool, flag("--all", help="All keys, without a limit.")] = False,
    full: Annotated[bool, flag("--full", help="Do not shorten long keys.")] = False,
    store: StoreOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """List keys, newest first.

    Example: [cyan]twicesafe keys list --state held --state parked --older-than 1h[/]
    Example: [cyan]twicesafe keys list --value tx-123[/]  (in any scope)
    """
    screen = Screen(json)
    which = conditions_of(state, scope, value, error, since, older_than, stuck, cause)
    settings = settle(store, config)
    none = f"no keys found in {mask(settings.url)} (from {settings.source})"
    with opened(settings) as receiver:
        asked = receiver._asked(which)
        if all_:
            query = Browsing(asked, None)
            _list_all(screen, receiver._each(query), query.unreadable, full, none)
            return
        with while_reading(screen):
            page = receiver._runtime.run(page_of(Browse(limit, **asked, after=after)))
            records, more = page.view(), page.after
    if json:
        shown = [record_data(record) for record in records]
        screen.data({"records": shown, "after": more, "unreadable": list(page.unreadable)})
        return
    if records or not page.unreadable:
        _print_rows(screen, records, full, none)
    screen.tell_unreadable(page.unreadable)
    if more:
        screen.say(Text(f"more keys follow: add --after {more}, or --all", "dim"))


def _list_all(
    screen: Screen,
    records: Iterator[Record],
    unreadable: dict[str, None],
    full: bool,
    none: str,
) -> None:
    if screen.json:
        screen.stream(records, unreadable)
        return
    page: list[Record] = []
    header = True
    for record in records:
        page.append(record)
        if len(page) == 100:
            _print_rows(screen, page, full, none, header)
            page, header = [], False
    if page or (header and not unreadable):
        _print_rows(screen, page, full, none, header)
    screen.tell_unreadable(unreadable)


def _print_rows(
    screen: Screen, records: list[Record], full: bool, none: str, header: bool = True
) -> None:
    """`none`: what to say if there are no records."""
    if not records:
        screen.say(Text(visible(none), "dim"))
        return
    cells = _cells(screen.out.width, any(record.error for record in records))
    made = Table(box=None, show_header=header, header_style="bold dim", padding=(0, 2, 0, 0))
    for name, width in cells.items():
        # Fixed widths keep the pages of a long list aligned on a terminal; a pipe gets whole rows.
        fixed = None if screen.piped and name in _GROWING else width
        folds = name in ("key", "scope")
        made.add_column(
            name,
            width=fixed,
            overflow="fold" if folds else "ellipsis",
            no_wrap=not folds,
            justify="right" if name == "tries" else "left",
        )
    for record in records:
        scope, whole = BETWEEN.join(record.scope), screen.piped or full
        shown: dict[str, str | Text] = {
            "id": record.short,
            "state": state_text(record.state),
            "key": Text(_cut(record.value, cells, "key", full)),
            "scope": Text(_cut(scope, cells, "scope", full)),
            "tries": str(record.attempt),
            "changed": ago(record.changed_at),
            "last error": Text(_cut(record.error, cells, "last error", whole)),
        }
        made.add_row(*(shown[name] for name in cells))
    screen.out.print(made)


_NARROWEST: Final = {
    "id": 8,
    "state": 11,
    "key": 10,
    "scope": 10,
    "tries": 5,
    "changed": 10,
    "last error": 16,
}
"""Columns, and the cells that each needs. An id is never cut: it is what an operator copies."""
_DISPENSABLE: Final = ("tries", "scope", "last error", "changed", "state")
"""What a narrow terminal does not show; `keys show` and --json show all."""
_GROWING: Final = ("last error", "scope", "key")
"""What gets the spare cells, the last one most."""


def _cells(width: int, failed: bool) -> dict[str, int]:
    """The columns that fit, and their widths."""
    cells = {name: each for name, each in _NARROWEST.items() if failed or name != "last error"}
    for name in _DISPENSABLE:
        if _taken(cells) > width:
            cells.pop(name, None)
    for name, share in zip(_GROWING, (3, 2, 1), strict=True):
        if name in cells:
            spare = max(0, width - _taken(cells)) // share
            cells[name] += (
                min(spare, ERROR_CELLS - _NARROWEST[name]) if name == "last error" else spare
            )
    return cells


def _taken(cells: dict[str, int]) -> int:
    return sum(cells.values()) + 2 * len(cells)


def _cut(text: str, cells: dict[str, int], name: str, whole: bool) -> str:
    return visible(text) if whole or name not in cells else shortened(text, cells[name])


def show_key(
    key: KeyArgument = None,
    scope: ScopeOption = None,
    id_: IdOption = None,
    archive: Annotated[
        str | None,
        typer.Option(
            "--archive",
            metavar="PLACE",
            help="If its answer was archived, look here: a directory, or s3://bucket/prefix.",
            show_default=False,
        ),
    ] = None,
    store: StoreOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show one key, the steps of a durable run and the audit trail, but never a result.

    Example: [cyan]twicesafe keys show tx-123 --scope acct_1 --scope "POST /charges"[/]
    Example: [cyan]twicesafe keys show tx-123 --archive /var/lib/shop/answers[/]
    """
    screen = Screen(json)
    with opened(settle(store, config)) as receiver:
        if archive is not None and show_archived(screen, receiver, archive, key, scope, id_):
            return
        found = find(receiver, key, scope, id_)
        # Only the hash of a forgotten key is left: reading its trail takes the key's text.
        trail = None if found.key is None else receiver.audit(found.key)
        # What is found by its id is read again, with its steps.
        again = None if key is not None or found.key is None else receiver.record(found.key)
    record = again or found.record
    if json:
        audit = None if trail is None else [audit_data(entry) for entry in trail]
        steps = [step_data(step) for step in record.steps]
        screen.data({**record_data(record), "steps": steps, "audit": audit})
        return
    print_record(screen, record)
    _print_steps(screen, record)
    _print_trail(screen, trail)


def show_archived(
    screen: Screen,
    receiver: Receiver,
    place: str,
    value: str | None,
    scope: list[str] | None,
    digits: str | None,
) -> bool:
    """Show the record in the archive, if the store does not have its answer; False: the store has it, or
    neither does."""
    there = located(receiver, value, scope, digits)
    if there is not None and there.state is not State.FORGOTTEN:
        return False
    wanted = (
        digits.lower()
        if digits is not None
        else receiver.key(Key(value or "", scope or (), absolute=True))
    )
    found = Archive.open(place).find(wanted)
    if found is None:
        return False
    if screen.json:
        screen.data(
            {**record_data(found.record), "steps": [], "audit": None, "archive": found.file}
        )
        return True
    print_record(screen, found.record)
    screen.say()
    screen.say(Text(f"archived in {found.file}", "dim"))
    return True


def print_record(screen: Screen, record: Record) -> None:
    style, meaning = STATES[record.state]
    if record.lease_until is not None and record.lease_until < datetime.now(UTC):
        meaning = "but its lease has expired: the next delivery takes over"
    made = table("", "", header=False)
    made.columns[0].style = "dim"
    made.columns[1].overflow = "fold"

    def row(name: str, value: Any) -> None:
        made.add_row(name, value if isinstance(value, Text) else Text(str(value)))

    row("key", visible(record.value) or Text("erased", "dim"))
    if record.scope:
        row("scope", BETWEEN.join(map(visible, record.scope)))
    row("id", record.id.hex())
    row("state", Text.assemble((record.state.value, f"bold {style}"), f"  {meaning}"))
    row("attempts", record.attempt)
    row("fence", record.fence)
    if record.cause is not None:
        row("cause", f"{record.cause.value}  reason of the last re-run")
    if record.error:
        row("last failure", visible(record.error))
    for name, moment in (
        ("first seen", record.created_at),
        ("last change", record.changed_at),
        ("lease ends", record.lease_until),
        ("next run after", record.not_before),
        ("kept until", record.expires_at),
    ):
        if moment is not None:
            row(name, f"{moment:%Y-%m-%d %H:%M:%S} UTC  ({ago(moment)})")
    if record.result_bytes is not None:
        row("result", f"{record.result_bytes:,} bytes (not shown)")
    screen.out.print(made)


def _print_steps(screen: Screen, record: Record) -> None:
    if not record.steps:
        return
    screen.say()
    made = table("step", "kind", "state", "tries", "changed", "ends")
    made.columns[0].overflow = "fold"
    for step in record.steps:
        ends = "" if step.due_at is None else f"{step.due_at:%Y-%m-%d %H:%M:%S} UTC"
        made.add_row(
            Text(step_words(step.name)),
            step.kind,
            Text(step.state.value, _STEP_STYLES[step.state]),
            str(step.attempt),
            ago(step.changed_at),
            ends,
        )
    screen.out.print(made)


def _print_trail(screen: Screen, trail: list[AuditEntry] | None) -> None:
    screen.say()
    if trail is None:
        screen.say(
            Text("the key's text was erased: to see its audit trail, give KEY and --scope", "dim")
        )
        return
    if not trail:
        screen.say(Text("no operator has changed this key", "dim"))
        return
    made = table("when", "who", "did", "state before", "why")
    made.columns[4].overflow = "fold"
    for entry in trail:
        made.add_row(
            ago(entry.at),
            Text(visible(entry.by)),
            entry.action,
            state_text(entry.state_before),
            Text(visible(entry.why)),
        )
    screen.out.print(made)
