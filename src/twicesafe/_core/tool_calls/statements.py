"""Which errors say that nothing was done? Only those that a tool's author chose, or that came before the tool.

A framework raises the same errors as an author: for its own time limit, for an error of a server behind
it, for what the tool called next. The tool may have had its effect by then. So an error of the framework
counts only if other code than the framework's raised it. Those of the rule count wherever they were raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from traceback import walk_tb
from typing import TypeAlias

__all__ = ["Statement", "chain_of", "modules_of", "remembered", "says_not_done", "stated_outside"]

Statement: TypeAlias = Callable[[BaseException], bool]
"""Does this error, without what led to it, say that nothing was done?"""


def says_not_done(
    error: BaseException, kinds: tuple[type[BaseException], ...], states: Statement
) -> bool:
    """Believed only if no other error led to it: a time-out in other words is still a time-out.

    ``raise … from None`` is believed: then the author has said so.
    """
    return all(isinstance(one, kinds) or states(one) for one in chain_of(error))


def chain_of(error: BaseException) -> Iterator[BaseException]:
    """The error, and what led to it."""
    here: BaseException | None = error
    while here is not None:
        yield here
        here = here.__cause__ or (None if here.__suppress_context__ else here.__context__)


def remembered(
    error: BaseException, kinds: tuple[type[BaseException], ...], packages: tuple[str, ...]
) -> BaseException | None:
    """The error that the policy remembers: the tool's own, also behind what these packages made of it.

    What the tool made of such an error says something else: a second card timed out after the first was declined.
    """
    here: BaseException | None = error
    while here is not None and not isinstance(here, kinds):
        here = here.__cause__ if _is_of(here, packages) else None
    return here


def stated_outside(packages: tuple[str, ...], kinds: tuple[type[BaseException], ...]) -> Statement:
    """An error of these kinds, raised by other code than these packages; or by them, around an error that
    decides in its place.
    """

    def states(error: BaseException) -> bool:
        if not isinstance(error, kinds):
            return False
        return not _is_of(error, packages) or error.__cause__ is not None

    return states


def _is_of(error: BaseException, packages: tuple[str, ...]) -> bool:
    """One of these packages raised it."""
    *_, raised_in = "", *modules_of(error)
    return raised_in.partition(".")[0] in packages


def modules_of(error: BaseException) -> list[str]:
    """The names of the modules that the error went through; the last one raised it."""
    return [str(frame.f_globals.get("__name__", "")) for frame, _ in walk_tb(error.__traceback__)]
