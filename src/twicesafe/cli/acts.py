"""``twicesafe keys release``, ``resolve`` and ``forget``: an operator's acts, each on one key.

Every act is written into the key's audit trail with who and why, in the same transaction. On a
terminal each asks first; in a script, or with ``--yes``, it does not.
"""

from __future__ import annotations

import getpass
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.text import Text

from .. import Key, Receiver, Record, State
from ..errors import UsageError
from .config import opened, settle
from .exits import NO, USAGE, Ended
from .finding import Found, find
from .options import (
    ByOption,
    ConfigOption,
    IdOption,
    JsonOption,
    KeyArgument,
    ScopeOption,
    StoreOption,
    WhyOption,
    YesOption,
)
from .output import STATES, Screen, record_data, shortened

__all__ = ["forget_key", "release_key", "resolve_key"]


def release_key(
    by: ByOption,
    why: WhyOption,
    key: KeyArgument = None,
    scope: ScopeOption = None,
    id_: IdOption = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Also a completed key: the work is done again.", show_default=False
        ),
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
    scope: ScopeOption = None,
    id_: IdOption = None,
    yes: YesOption = False,
    store: StoreOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Record an answer by hand; repeats get it from then on.

    Example: [cyan]twicesafe keys resolve tx-123 --value '"ch_42"' --by ana --why paid[/]
    """
    screen = Screen(json)
    _need(by, why)
    answer = _answer(value, value_file)
    with opened(settle(store, config)) as receiver:
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
    yes: YesOption = False,
    store: StoreOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Erase a key's text and result; a late repeat still does not run.

    Example: [cyan]twicesafe keys forget tx-123 --by ana --why "erasure request 77"[/]
    """
    screen = Screen(json)
    with opened(settle(store, config)) as receiver:
        found = find(receiver, key, scope, id_)
        target = found.key
        if found.record.state is State.FORGOTTEN or target is None:
            _said(screen, found.record, "was forgotten before")
            return
        _ask(screen, found.record, "erase its text and result for good?", yes)
        _act(lambda: receiver.forget(target, by=by or _login(), why=why))
        _report(screen, receiver, found, "forgotten; a late repeat does not run")


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


def _answer(text: str | None, path: Path | None) -> Any:
    if (text is None) == (path is None):
        raise Ended("give the answer once: --value JSON, or --value-file PATH", USAGE)
    try:
        if text is not None:
            data = text.encode()
        else:
            assert path is not None
            data = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
        return msgspec.json.decode(data)
    except OSError as error:
        raise Ended(f"cannot read {path}: {error.strerror}", USAGE) from error
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise Ended(
            f"the answer is not JSON ({error}); text needs quotes: '\"paid\"'", USAGE
        ) from error


def _ask(screen: Screen, record: Record, question: str, yes: bool) -> None:
    if yes or not sys.stdin.isatty():
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
        raise Ended(str(error), NO, "Refused") from error


def _report(screen: Screen, receiver: Receiver, found: Found, words: str) -> None:
    now = None if found.key is None else receiver.record(found.key)
    _said(screen, now or found.record, words)


def _said(screen: Screen, record: Record, words: str) -> None:
    if screen.json:
        screen.data(record_data(record))
    screen.say(Text("✓", "green"), f"{record.short} {words}")
