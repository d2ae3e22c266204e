"""The command line, ``twicesafe``: manage keys and stores, run the proxy and the relay, test handlers.

It needs typer and rich, which the extra ``cli`` installs; without them it prints what to install.

    app          the list of commands, and `run`; one module per command or group of commands
    options      options that commands share; `search_options`: those that choose records
    settings     the store and the policy of a command
    output       tables and JSON; `progress`: bars and lines; `exits`: errors and exit statuses

Exit status of every command:

    0    success
    1    refused or failed: a failed check, a broken guarantee, no such key, a refused operation
    2    wrong usage or configuration: change it and run the command again
    3    the store or the broker did not answer, or the store is missing or has another version
    141  the reader of the output closed the pipe (`| head`), as for other tools
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .._values.drivers import missing

__all__ = ["main"]

NEEDED = ("typer", "rich")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (default: ``sys.argv``) and return its exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        from .app import run
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in NEEDED:
            raise
        print(f"twicesafe: {missing(package, error)}", file=sys.stderr)
        return 2
    return run(given)
