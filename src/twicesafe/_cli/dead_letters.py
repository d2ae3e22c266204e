"""``twicesafe dead-letters …``: look at what consumers gave up on, replay it, or discard it.

``--from`` is the URL of a consumer of the dead topic, stream or queue. Looking changes nothing.
"""

from __future__ import annotations

import base64
import sys
from typing import Annotated, Any

import typer
from rich.text import Text

from ..consumers import DeadLetters, Letter
from ..consumers._letters import Chosen, LetterFilter
from ..errors import UsageError
from ..stores._urls import mask
from .bulk_actions import SHOWN
from .exits import NO, USAGE, CommandEnded
from .options import ByOption, ConfigOption, JsonOption, StoreOption, WhyOption, YesOption, flag
from .output import Screen, counted, shortened, table, visible
from .settings import opened, settle

__all__ = ["discard", "list_letters", "replay", "show"]

FromOption = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="URL",
        help="The dead letters: a consumer's URL, with the dead topic, stream or queue.",
        show_default=False,
    ),
]
IdArguments = Annotated[
    list[str] | None, typer.Argument(metavar="ID", help="Ids, from `dead-letters list`.")
]
ReasonOption = Annotated[
    str | None,
    typer.Option("--reason", metavar="TEXT", help="Only letters whose reason contains this."),
]
TopicOption = Annotated[
    str | None,
    typer.Option("--topic", metavar="NAME", help="Only letters that came from this topic."),
]
AllOption = Annotated[bool, flag("--all", help="Every letter that the filters match.")]
DryRunOption = Annotated[
    bool, flag("--dry-run", help="Count and show what matches; change nothing.")
]
LimitOption = Annotated[
    int, typer.Option("--limit", metavar="N", min=1, help="Read at most this many letters.")
]


def list_letters(
    source: FromOption,
    reason: ReasonOption = None,
    topic: TopicOption = None,
    limit: LimitOption = 1000,
    json: JsonOption = False,
) -> None:
    """List dead letters, oldest first, with the reason of each.

    Example: [cyan]twicesafe dead-letters list --from 'redis://localhost?stream=orders.dead&group=ops'[/]
    """
    screen = Screen(json)
    found = _look(source, limit)
    letters = list(filter(LetterFilter((), reason, topic), found))
    if json:
        screen.data({"letters": [_data(one) for one in letters]})
        return
    screen.place(mask(source))
    made = table("id", "key", "from", "error", "reason")
    for one in letters:
        made.add_row(
            Text(shortened(one.id, 36)),
            Text(shortened(one.message.key or "–", 20)),
            Text(shortened(one.topic, 24)),
            Text(visible(one.error)),
            Text(visible(one.reason)[:80]),
        )
    if letters:
        screen.out.print(made)
        screen.say(counted(len(letters), "dead letter"))
    else:
        screen.say("no dead letter matches" if found else "there are no dead letters")
    if len(found) >= limit:
        said = (
            f"stopped after the oldest {counted(limit, 'letter')}: --limit {limit * 10} reads more"
        )
        screen.say(Text(said, "dim"))


def show(
    id: Annotated[str, typer.Argument(metavar="ID", help="The id of one letter.")],  # noqa: A002
    source: FromOption,
    limit: LimitOption = 10_000,
    json: JsonOption = False,
) -> None:
    """Show one dead letter with its headers and its body.

    Example: [cyan]twicesafe dead-letters show order-7 --from 'amqp://localhost?queue=orders.dead'[/]
    """
    screen = Screen(json)
    found = [one for one in _look(source, limit) if one.id == id]
    if not found:
        raise CommandEnded(f"there is no dead letter {visible(id)!r} among the first {limit:,}")
    if json:
        screen.data({"letters": [_data(one, body=True) for one in found]})
        return
    for one in found:
        made = table("", "", header=False)
        for name, value in {**_data(one), **one.message.headers}.items():
            made.add_row(Text(visible(str(name)), "dim"), Text(visible(str(value))))
        screen.out.print(made)
        screen.out.print(visible(one.message.body.decode(errors="backslashreplace")), markup=False)


def replay(
    source: FromOption,
    by: ByOption,
    why: WhyOption,
    ids: IdArguments = None,
    reason: ReasonOption = None,
    topic: TopicOption = None,
    all_: AllOption = False,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="URL",
            help="Where to send them: a publisher's URL. Default: the broker of --from.",
        ),
    ] = None,
    limit: LimitOption = 100_000,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    store: StoreOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Send dead letters back to where they came from; each runs again under its old key.

    --store is the consumer's store. Messages of the same ordering key that arrive meanwhile may run before them.
    Example: [cyan]twicesafe dead-letters replay --all --reason 'no such customer' --from URL --by ana --why fixed[/]
    """
    screen = Screen(json)
    which = _which(ids, all_, reason, topic)
    with DeadLetters.open(source) as dead, opened(settle(store, config)) as receiver:
        chosen = list(filter(which, dead.look(limit)))
        missing = which.missing(chosen)
        if dry_run:
            _count(screen, "replayed", chosen, missing)
            return
        asked = _confirmed("replay", which, chosen, yes, all_)
        done = dead.replay(receiver, by=by, why=why, to=to, limit=limit, chosen=asked)
    if json:
        screen.data({"replayed": done.replayed, "held": done.held, "missing": missing})
    screen.say(Text("✓", "green"), f"{counted(done.replayed, 'dead letter')} replayed")
    for id_ in done.held:
        screen.say(
            Text("!", "yellow"),
            f"{visible(id_)} stays: the outcome of its key is unknown; find out what happened, then "
            "run `twicesafe keys resolve` or `release`",
        )
    _say_missing(screen, missing)
    if done.held or missing:
        raise typer.Exit(NO)


def discard(
    source: FromOption,
    by: ByOption,
    why: WhyOption,
    ids: IdArguments = None,
    reason: ReasonOption = None,
    topic: TopicOption = None,
    all_: AllOption = False,
    limit: LimitOption = 100_000,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    store: StoreOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Delete dead letters. Their keys stay parked, so a repeat does not run.

    --store is the consumer's store. The audit trail of each key there records --by and --why.
    Example: [cyan]twicesafe dead-letters discard order-7 --from 'amqp://localhost?queue=orders.dead' --by ana --why test[/]
    """
    screen = Screen(json)
    which = _which(ids, all_, reason, topic)
    with DeadLetters.open(source) as dead, opened(settle(store, config)) as receiver:
        chosen = list(filter(which, dead.look(limit)))
        missing = which.missing(chosen)
        if dry_run:
            _count(screen, "discarded", chosen, missing)
            return
        asked = _confirmed("discard", which, chosen, yes, all_)
        done = dead.discard(receiver, by=by, why=why, chosen=asked, limit=limit)
    if json:
        screen.data({"discarded": done.discarded, "unaudited": done.unaudited, "missing": missing})
    screen.say(Text("✓", "green"), f"{counted(done.discarded, 'dead letter')} discarded")
    if done.unaudited:
        shown = counted(len(done.unaudited), "letter")
        screen.say(
            Text("!", "yellow"),
            f"{shown} without a record in this store: --by and --why are not kept",
        )
    _say_missing(screen, missing)
    if missing:
        raise typer.Exit(NO)


def _look(source: str, limit: int) -> list[Letter]:
    with DeadLetters.open(source) as dead:
        return dead.look(limit)


def _which(
    ids: list[str] | None, everything: bool, reason: str | None, topic: str | None
) -> LetterFilter:
    if bool(ids) == everything:
        raise UsageError("name the letters, or give --all")
    return LetterFilter(tuple(ids or ()), reason, topic)


def _say_missing(screen: Screen, missing: list[str]) -> None:
    for id_ in missing:
        screen.say(Text("!", "yellow"), f"no dead letter matches {visible(id_)!r}")


def _count(screen: Screen, done: str, chosen: list[Letter], missing: list[str]) -> None:
    """What would be done, and to which letters; nothing is changed."""
    if screen.json:
        screen.data({"matched": len(chosen), "dry_run": True, done: 0, "missing": missing})
    screen.say(f"{counted(len(chosen), 'dead letter')} would be {done}; nothing was changed")
    for one in chosen[:SHOWN]:
        screen.say(Text(f"  {visible(shortened(one.id, 36))}  {visible(one.reason)[:80]}", "dim"))
    if len(chosen) > SHOWN:
        screen.say(Text(f"  and {len(chosen) - SHOWN:,} more", "dim"))
    _say_missing(screen, missing)


def _confirmed(
    verb: str, which: Chosen, chosen: list[Letter], yes: bool, everything: bool
) -> Chosen:
    """Which letters to change: if there is a question, those that it is about, and none that come later."""
    if not chosen:
        raise CommandEnded("no dead letter matches; nothing was changed")
    if yes:
        return which
    if sys.stdin is None or not sys.stdin.isatty():
        if not everything:
            return which  # they were named
        raise CommandEnded(
            "many dead letters would be changed: add --yes, or --dry-run to only count them", USAGE
        )
    if not typer.confirm(f"{verb} {counted(len(chosen), 'dead letter')}?", err=True):
        raise CommandEnded("nothing was changed", NO, "Declined")
    asked = {one.digits for one in chosen}
    return lambda letter: letter.digits in asked


def _data(letter: Letter, body: bool = False) -> dict[str, Any]:
    message = letter.message
    data: dict[str, Any] = {
        "id": letter.id,
        "key": message.key,
        "from": letter.topic,
        "consumer": letter.consumer,
        "error": letter.error,
        "reason": letter.reason,
        "position": message.position,
    }
    if body:
        data["headers"] = message.headers
        data["body"] = base64.b64encode(message.body).decode()
    return data
