"""``twicesafe keys release``, ``resolve`` and ``forget``: an operator's acts, each on one key.

Every act is written into the key's audit trail with who and why, in the same transaction. On a
terminal each asks first; in a script, or with ``--yes``, it does not.
"""

from __future__ import annotations

import getpass
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.text import Text

from .. import Key, Receiver, Record, State
from .._core.http.stored import RESPONSE_CODEC
from ..errors import NotStorableError, UsageError
from ..http import StoredResponse
from .config import Settings, opened, settle
from .exits import NO, USAGE, Ended, in_cli_words
from .finding import Found, find
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

__all__ = ["forget_key", "release_key", "resolve_key"]

_RESPONSE = "Of a request"


def release_key(
    by: ByOption,
    why: WhyOption,
    key: KeyArgument = None,
    scope: ScopeOption = None,
    id_: IdOption = None,
    force: Annotated[
        bool,
        flag("--force", help="Also a completed key: the work is done again."),
    ] = False,
    yes: YesOption = False,
    store: StoreOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Let the next delivery run: for held, parked and stuck keys.

    Example: [cyan]twicesafe keys release tx-123 --by ana --why "bank says: not charged"[/]
    """
    screen = Screen(json)
    _need(by, why)
    with opened(settle(store, config)) as receiver:
        found = find(receiver, key, scope, id_)
        record, target = found.record, _target(found, "released")
        if record.state is State.COMPLETED and not force:
            raise Ended(
                "this key is completed and has its answer; to do the work again all the same, "
                "add --force",
                kind="Refused",
            )
        warning = {
            State.IN_PROGRESS: "its worker loses the claim and the work may happen twice",
            State.COMPLETED: "its answer is dropped and the work is done AGAIN",
        }.get(record.state, "the next delivery runs it")
        _ask(screen, record, f"release it: {warning}?", yes)
        _act(lambda: receiver.release(target, by=by, why=why, force=force))
        _report(screen, receiver, found, "released; the next delivery runs it")


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
            "--value-file", metavar="PATH", help="…or in a file; - is stdin.", show_default=False
        ),
    ] = None,
    status: Annotated[
        int | None,
        typer.Option(
            "--status",
            metavar="CODE",
            min=200,
            max=599,
            help="For a request: the answer is a response with this status, …",
            rich_help_panel=_RESPONSE,
            show_default=False,
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header",
            metavar="'NAME: VALUE'",
            help="…this field; repeat it, …",
            rich_help_panel=_RESPONSE,
            show_default=False,
        ),
    ] = None,
    body: Annotated[
        str | None,
        typer.Option(
            "--body",
            metavar="TEXT",
            help="…and this body.",
            rich_help_panel=_RESPONSE,
            show_default=False,
        ),
    ] = None,
    body_file: Annotated[
        Path | None,
        typer.Option(
            "--body-file",
            metavar="PATH",
            help="…or the body in a file; - is stdin.",
            rich_help_panel=_RESPONSE,
            show_default=False,
        ),
    ] = None,
    scope: ScopeOption = None,
    id_: IdOption = None,
    retention: RetentionOption = None,
    yes: YesOption = False,
    store: StoreOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Record an answer by hand; repeats get it from then on.

    Of a request behind the middleware or the proxy it is a response: --status, --header, --body.
    Example: [cyan]twicesafe keys resolve tx-123 --value '"ch_42"' --by ana --why paid[/]
    Example: [cyan]twicesafe keys resolve --id 5f0c6a1e --status 201 --body '{"charge":7}'
    --header 'Content-Type: application/json' --by ana --why "seen at the bank"[/]
    """
    screen = Screen(json)
    _need(by, why)
    settings = _kept_for(retention, settle(store, config))
    answer: Any
    if status is not None:
        if value is not None or value_file is not None:
            raise Ended("a response has a --body, not a --value", USAGE)
        answer = _response(status, header or [], body, body_file)
        settings = replace(settings, policy=settings.policy.replace(codec=RESPONSE_CODEC))
    else:
        if header or body is not None or body_file is not None:
            raise Ended("a response needs its --status, like 201", USAGE)
        answer = _answer(value, value_file)
    with opened(settings) as receiver:
        found = find(receiver, key, scope, id_)
        target = _target(found, "resolved")
        _ask(screen, found.record, "record this answer for good?", yes)
        _act(lambda: receiver.resolve(target, answer, by=by, why=why))
        _report(screen, receiver, found, "resolved; repeats get this answer")


def forget_key(
    key: KeyArgument = None,
    scope: ScopeOption = None,
    id_: IdOption = None,
    by: Annotated[
        str,
        typer.Option(
            "--by", metavar="WHO", help="Who does this; default: your login.", show_default=False
        ),
    ] = "",
    why: Annotated[
        str, typer.Option("--why", metavar="TEXT", help="Why; kept too.", show_default=False)
    ] = "",
    retention: RetentionOption = None,
    yes: YesOption = False,
    store: StoreOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Erase a key's text and result; a late repeat still does not run.

    Example: [cyan]twicesafe keys forget tx-123 --by ana --why "erasure request 77"[/]
    """
    screen = Screen(json)
    with opened(_kept_for(retention, settle(store, config))) as receiver:
        found = find(receiver, key, scope, id_)
        target = found.key
        if found.record.state is State.FORGOTTEN or target is None:
            _said(screen, found.record, "was forgotten before")
            return
        _ask(screen, found.record, "erase its text and result for good?", yes)
        _act(lambda: receiver.forget(target, by=by or _login(), why=why))
        _report(screen, receiver, found, "forgotten; a late repeat does not run")


def _kept_for(retention: float | None, settings: Settings) -> Settings:
    if retention is None:
        return settings
    return replace(settings, policy=settings.policy.replace(retention=retention))


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"  # a container without a user table


def _need(by: str, why: str) -> None:
    for name, text in (("--by", by), ("--why", why)):
        if not text.strip():
            raise Ended(f"{name} is empty: the audit trail needs a word", USAGE)


def _target(found: Found, done: str) -> Key:
    if found.key is None:
        raise Ended(f"this key was forgotten: it cannot be {done}", kind="Refused")
    return found.key


def _response(
    status: int, headers: list[str], text: str | None, path: Path | None
) -> StoredResponse:
    if text is not None and path is not None:
        raise Ended("give the body once: --body TEXT, or --body-file PATH", USAGE)
    lines = []
    for line in headers:
        name, colon, value = line.partition(":")
        if not colon or not line.isascii():
            raise Ended(f"--header {line!r} makes no sense: write 'Name: value'", USAGE)
        lines.append((name.strip().lower().encode(), value.strip().encode()))
    data = _octets(text, path) if text is not None or path is not None else b""
    made = StoredResponse(status, tuple(lines), data)
    try:
        RESPONSE_CODEC.encode(made)
    except NotStorableError as error:
        raise Ended(str(error), USAGE) from error
    return made


def _answer(text: str | None, path: Path | None) -> Any:
    if (text is None) == (path is None):
        raise Ended("give the answer once: --value JSON, or --value-file PATH", USAGE)
    try:
        return msgspec.json.decode(_octets(text, path))
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise Ended(
            f"the answer is not JSON ({error}); text needs quotes: '\"paid\"'", USAGE
        ) from error


def _octets(text: str | None, path: Path | None) -> bytes:
    if text is not None:
        return text.encode()
    assert path is not None
    if str(path) == "-" and sys.stdin is None:
        raise Ended("cannot read -: stdin is closed", USAGE)
    try:
        return sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except OSError as error:
        raise Ended(f"cannot read {path}: {error.strerror}", USAGE) from error


def _ask(screen: Screen, record: Record, question: str, yes: bool) -> None:
    if yes or sys.stdin is None or not sys.stdin.isatty():  # None: closed by the shell
        return
    colour, meaning = STATES[record.state]
    screen.err.print(
        Text.assemble(
            f"{record.short}  {shortened(record.value, 40)}  ",
            (record.state.value, colour),
            f"  {meaning}",
        )
    )
    if not typer.confirm(question, err=True):
        raise Ended("left as it was", NO, "Declined")


def _act(act: Callable[[], None]) -> None:
    """A refusal by the record's state is an answer, not a wrong command line."""
    try:
        act()
    except UsageError as error:
        raise Ended(in_cli_words(str(error)), NO, "Refused") from error


def _report(screen: Screen, receiver: Receiver, found: Found, words: str) -> None:
    now = None if found.key is None else receiver.record(found.key)
    _said(screen, now or found.record, words)


def _said(screen: Screen, record: Record, words: str) -> None:
    if screen.json:
        screen.data(record_data(record))
    kept = ""
    if record.expires_at is not None and record.state is not State.RELEASED:
        kept = f"; kept until {record.expires_at:%Y-%m-%d %H:%M:%S} UTC"
    screen.say(Text("✓", "green"), f"{record.short} {words}{kept}")
