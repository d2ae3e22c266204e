"""``twicesafe keys reencrypt``: after a key rotation, write old answers under the new encryption key."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from .._core.searching import named_ids
from ..errors import UsageError
from .exits import NO, CommandEnded
from .key_actions import need
from .options import ByOption, ConfigOption, JsonOption, StoreOption, WhyOption
from .output import Screen, counted
from .settings import opened, settle

__all__ = ["reencrypt_keys"]


def reencrypt_keys(
    by: ByOption,
    why: WhyOption,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", metavar="N", min=1, help="Examine at most N records.", show_default=False
        ),
    ] = None,
    after: Annotated[
        str,
        typer.Option(
            "--after",
            metavar="MARK",
            help="Continue after this mark, which the last run printed.",
            show_default=False,
        ),
    ] = "",
    store: StoreOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    r"""Encrypt recorded answers with the first key of the key ring, newest first.

    The key ring is \[policy] encryption in twicesafe.toml, or TWICESAFE_POLICY_ENCRYPTION. The command can
    run during deliveries, and again after a crash. The audit log gets an entry with --by and --why before the first
    change, and one in the end, with the number of answers. Exit status 1 if an answer does not decrypt.
    Example: [cyan]TWICESAFE_POLICY_ENCRYPTION=file:keys.txt twicesafe keys reencrypt --by ana --why "new key"[/]
    """
    screen = Screen(json)
    need(by, why)
    settings = settle(store, config)
    if settings.policy.encryption is None:
        raise UsageError(
            "there is nothing to re-encrypt with: set TWICESAFE_POLICY_ENCRYPTION=file:/path, or in "
            "twicesafe.toml [policy] encryption = 'file:/path'"
        )
    with opened(settings) as receiver:
        report = receiver.reencrypt(limit=limit, after=after, by=by, why=why)
    if json:
        screen.data(
            {
                "examined": report.examined,
                "rewritten": report.rewritten,
                "changed": report.changed,
                "unreadable": list(report.unreadable),
                "after": report.after,
            }
        )
    else:
        screen.say(
            Text("✓", "green"),
            f"{counted(report.rewritten, 'answer')} of {counted(report.examined, 'record')} re-encrypted",
        )
        if report.after:
            screen.say(Text(f"more records follow: add --after {report.after}", "dim"))
    if report.unreadable:
        raise CommandEnded(
            f"{counted(len(report.unreadable), 'answer')} did not decrypt and stayed as they were "
            f"({named_ids(report.unreadable)}): is their key in the key ring?",
            NO,
        )
