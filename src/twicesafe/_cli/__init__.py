"""The command line: ``twicesafe keys|stats|sweep|doctor|migrate|bench|verify|demo|version``.

It stands on typer and rich, which come with the extra ``cli``; without them this says what to
install. Exit status, everywhere:

    0  done
    1  the answer is no: a finding that refuses, a broken invariant, no such key, a refused act
    2  the command line or the configuration must change
    3  the store or the broker did not answer, or the store is not there or not for this version
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .._values.drivers import missing

__all__ = ["main"]

NEEDED = ("typer", "rich")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (default: this process's); the exit status."""
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
