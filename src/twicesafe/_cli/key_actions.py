"""``twicesafe keys release``, ``resolve`` and ``forget``: operator commands that change one key, or all that match.

Each change writes who and why to the key's audit trail, in the same transaction. On a terminal
each command asks for confirmation; in a script, or with ``--yes``, it does not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from .. import Key, Receiver, Record, State
from .._core.http.stored_response import RESPONSE_CODEC
from ..errors import UsageError
from .answers import answer_of, response_of
from .bulk_actions import (
    Bulk,
    BulkLimitOption,
    DryRunOption,
    RateOption,
    act_on_all,
    is_bulk,
)
from .exits import NO, USAGE, CommandEnded, in_cli_words
from .options import (
    ByOption,
    ConfigOption,
    IdOption,
    JsonOption,
    KeyArgument,
    RetentionOption,
    ScopeOption,
    StoreOption,
    WhyOption,
    YesOption,
    flag,
)
from .output import STATES, Screen, record_data, shortened
from .record_lookup import FoundRecord, find
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
from .settings import CliSettings, opened, settle

__all__ = [
    "act",
    "ask",
    "forget_key",
    "need",
    "release_key",
    "report",
    "resolve_key",
    "target_of",
]

_RESPONSE = "HTTP response"


def release_key(
    by: ByOption,
    why: WhyOption,
    key: KeyArgument = None,
    scope: ScopeOption = None,
    id_: IdOption = None,
    force: Annotated[
        bool,
        flag("--force", help="Release even a completed key: the work is done again."),
    ] = False,
    state: StateOption = None,
    value: ValueOption = None,
    error: ErrorOption = None,
    since: SinceOption = None,
    older_than: OlderThanOption = None,
    stuck: StuckOption = False,
    cause: CauseOption = None,
    dry_run: DryRunOption = False,
    rate: RateOption = None,
    limit: BulkLimitOption = 10_000,
    yes: YesOption = False,
    store: StoreOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Let the next delivery run the handler: for held, parked and stuck keys.

    Example: [cyan]twicesafe keys release tx-123 --by ana --why "bank says: not charged"[/]
    Example: [cyan]twicesafe keys release --state parked --error TimeoutError --rate 50/s --dry-run
    --by ana --why "bank is back"[/]
    """
    screen = Screen(json)
    need(by, why)
    which = conditions_of(state, scope, value, error, since, older_than, stuck, cause)
    with opened(settle(store, config)) as receiver:
        if is_bulk(key, id_, which):
            act_on_all(
                screen,
                receiver,
                which,
                Bulk(dry_run, yes, rate, limit),
                lambda each: receiver._release(_key(each), by, why, force, each.fence, True),
                ("release", "released", "the next delivery of each runs the handler"),
            )
            return
        found = find(receiver, key, scope, id_)
        record, target = found.record, target_of(found, "released")
        if record.state is State.COMPLETED and not force:
            raise CommandEnded(
                "this key is completed and has a recorded answer; to run the work again anyway, "
                "add --force",
                kind="Refused",
            )
        warning = {
            State.IN_PROGRESS: "its worker loses the claim and the work may be done twice",
            State.COMPLETED: "its answer is deleted and the work is done AGAIN",
        }.get(record.state, "the next delivery runs the handler")
        ask(screen, record, f"release this key ({warning})?", yes)
        seen = record.fence  # the question may stand on the screen for a while
        act(lambda: receiver.release(target, by=by, why=why, force=force, fence=seen))
        report(screen, receiver, found, "released; the next delivery runs the handler")


def resolve_key(
    by: ByOption,
    why: WhyOption,
    key: KeyArgument = None,
    value: Annotated[
        str | None,
        typer.Option("--value", metavar="JSON", help="The answer, as JSON.", show_default=False),
    ] = None,
    value_file: Annotated[
        Path | None,
        typer.Option(
            "--value-file",
            metavar="PATH",
            help="Read the answer from a file; - is stdin.",
            show_default=False,
        ),
    ] = None,
    status: Annotated[
        int | None,
        typer.Option(
            "--status",
            metavar="CODE",
            min=200,
            max=599,
            help="Status of the response to record, like 201.",
            rich_help_panel=_RESPONSE,
            show_default=False,
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header",
            metavar="'NAME: VALUE'",
            help="A header of the response; repeat for several.",
            rich_help_panel=_RESPONSE,
            show_default=False,
        ),
    ] = None,
    body: Annotated[
        str | None,
        typer.Option(
            "--body",
            metavar="TEXT",
            help="Body of the response.",
            rich_help_panel=_RESPONSE,
            show_default=False,
        ),
    ] = None,
    body_file: Annotated[
        Path | None,
        typer.Option(
            "--body-file",
            metavar="PATH",
            help="Read the body from a file; - is stdin.",
            rich_help_panel=_RESPONSE,
            show_default=False,
        ),
    ] = None,
    scope: ScopeOption = None,
    id_: IdOption = None,
    retention: RetentionOption = None,
    state: StateOption = None,
    error: ErrorOption = None,
    since: SinceOption = None,
    older_than: OlderThanOption = None,
    stuck: StuckOption = False,
    cause: CauseOption = None,
    dry_run: DryRunOption = False,
    rate: RateOption = None,
    limit: BulkLimitOption = 10_000,
    yes: YesOption = False,
    store: StoreOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Record an answer by hand; repeats get it from now on.

    For a key of the HTTP middleware or the proxy, the answer is a response: give --status,
    --header and --body instead of --value.
    Example: [cyan]twicesafe keys resolve tx-123 --value '"ch_42"' --by ana --why paid[/]
    Example: [cyan]twicesafe keys resolve --id 5f0c6a1e --status 201 --body '{"charge":7}'
    --header 'Content-Type: application/json' --by ana --why "seen at the bank"[/]
    """
    screen = Screen(json)
    need(by, why)
    settings = _kept_for(retention, settle(store, config))
    answer: Any
    if status is not None:
        if value is not None or value_file is not None:
            raise CommandEnded(
                "--status records an HTTP response: use --body instead of --value", USAGE
            )
        answer = response_of(status, header or [], body, body_file)
        settings = replace(settings, policy=settings.policy.replace(codec=RESPONSE_CODEC))
    else:
        if header or body is not None or body_file is not None:
            raise CommandEnded("--header and --body need a --status, like 201", USAGE)
        answer = answer_of(value, value_file)
    which = conditions_of(state, scope, None, error, since, older_than, stuck, cause)
    with opened(settings) as receiver:
        if is_bulk(key, id_, which):
            act_on_all(
                screen,
                receiver,
                which,
                Bulk(dry_run, yes, rate, limit),
                lambda each: receiver._resolve(_key(each), answer, by, why, Any, each.fence, True),
                ("resolve", "resolved", "repeats of each get this one answer"),
            )
            return
        found = find(receiver, key, scope, id_)
        target = target_of(found, "resolved")
        ask(screen, found.record, "record this answer permanently?", yes)
        seen = found.record.fence
        act(lambda: receiver.resolve(target, answer, by=by, why=why, fence=seen))
        report(screen, receiver, found, "resolved; repeats get this answer")


def forget_key(
    by: ByOption,
    why: WhyOption,
    key: KeyArgument = None,
    scope: ScopeOption = None,
    id_: IdOption = None,
    retention: RetentionOption = None,
    state: StateOption = None,
    value: ValueOption = None,
    error: ErrorOption = None,
    since: SinceOption = None,
    older_than: OlderThanOption = None,
    stuck: StuckOption = False,
    cause: CauseOption = None,
    dry_run: DryRunOption = False,
    rate: RateOption = None,
    limit: BulkLimitOption = 10_000,
    yes: YesOption = False,
    store: StoreOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Erase a key's text and result; a late repeat still does not run.

    Example: [cyan]twicesafe keys forget tx-123 --by ana --why "erasure request 77"[/]
    Example: [cyan]twicesafe keys forget --scope acct_1 --by ana --why "account closed" --dry-run[/]
    """
    screen = Screen(json)
    need(by, why)
    which = conditions_of(state, scope, value, error, since, older_than, stuck, cause)
    with opened(_kept_for(retention, settle(store, config))) as receiver:
        if is_bulk(key, id_, which):
            act_on_all(
                screen,
                receiver,
                which,
                Bulk(dry_run, yes, rate, limit),
                lambda each: receiver._forget(_key(each), by, why),
                ("forget", "forgotten", "their text and results are erased permanently"),
            )
            return
        found = find(receiver, key, scope, id_)
        target = found.key
        if found.record.state is State.FORGOTTEN or target is None:
            _print_result(screen, found.record, "was already forgotten")
            return
        ask(screen, found.record, "erase the key's text and result permanently?", yes)
        act(lambda: receiver.forget(target, by=by, why=why))
        report(screen, receiver, found, "forgotten; a late repeat does not run")


def _kept_for(retention: float | None, settings: CliSettings) -> CliSettings:
    if retention is None:
        return settings
    return replace(settings, policy=settings.policy.replace(retention=retention))


def need(by: str, why: str) -> None:
    """Who and why, for the audit trail."""
    for name, text in (("--by", by), ("--why", why)):
        if not text.strip():
            raise CommandEnded(f"{name} is empty: the audit trail needs a value", USAGE)


def _key(record: Record) -> Key:
    assert record.key is not None  # only forgotten records have none
    return record.key


def target_of(found: FoundRecord, done: str) -> Key:
    """The key to change; a forgotten one has none."""
    if found.key is None:
        raise CommandEnded(f"this key was forgotten and cannot be {done}", kind="Refused")
    return found.key


def ask(screen: Screen, record: Record, question: str, yes: bool) -> None:
    """On a terminal, ask for confirmation."""
    if yes or sys.stdin is None or not sys.stdin.isatty():  # None: stdin is closed
        return
    style, meaning = STATES[record.state]
    screen.err.print(
        Text.assemble(
            f"{record.short}  {shortened(record.value, 40)}  ",
            (record.state.value, style),
            f"  {meaning}",
        )
    )
    if not typer.confirm(question, err=True):
        raise CommandEnded("nothing was changed", NO, "Declined")


def act(change: Callable[[], None]) -> None:
    """A change that the record's state forbids exits with 1 (no), not with 2 (wrong usage)."""
    try:
        change()
    except UsageError as error:
        raise CommandEnded(in_cli_words(str(error)), NO, "Refused") from error


def report(screen: Screen, receiver: Receiver, found: FoundRecord, words: str) -> None:
    """The record after the change."""
    now = None if found.key is None else receiver.record(found.key)
    _print_result(screen, now or found.record, words)


def _print_result(screen: Screen, record: Record, words: str) -> None:
    if screen.json:
        screen.data(record_data(record))
    kept = ""
    if record.expires_at is not None and record.state is not State.RELEASED:
        kept = f"; kept until {record.expires_at:%Y-%m-%d %H:%M:%S} UTC"
    screen.say(Text("✓", "green"), f"{record.short} {words}{kept}")
