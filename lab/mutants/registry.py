"""The list of mutants, and the way to put one into the running core and to take it out again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from ..simulation.violations import SET_ASIDE

__all__ = ["LIMIT", "MUTANTS", "Mutant", "Patch", "mutant", "mutated", "tampered"]

LIMIT: Final = 5_000
"""Schedules within which a mutant must be found."""

Patch = Callable[[Any, str, Any], None]


class Mutant(msgspec.Struct, frozen=True):
    name: str
    bug: str
    patch: Callable[[Patch], None]
    study: str
    """The one that must find it."""
    aside: tuple[str, ...] = ()
    """Invariants not looked at, because a second bug is needed to make this one visible."""
    first: int = 0
    """The first seed, for a bug that few schedules show."""


MUTANTS: dict[str, Mutant] = {}


def mutant(
    bug: str, study: str = "leases", aside: tuple[str, ...] = (), first: int = 0
) -> Callable[[Callable[[Patch], None]], Any]:
    def enter(patch: Callable[[Patch], None]) -> Any:
        name = patch.__name__.replace("_", " ")
        assert name not in MUTANTS, f"two mutants are called {name!r}"
        MUTANTS[name] = Mutant(name, bug, patch, study, aside, first)
        return patch

    return enter


@contextlib.contextmanager
def mutated(name: str) -> Iterator[None]:
    """The core with this bug, as long as the block lasts."""
    bug = MUTANTS[name]
    undo: list[tuple[Any, str, Any]] = []

    def patch(where: Any, attribute: str, value: Any) -> None:
        undo.append((where, attribute, getattr(where, attribute)))
        setattr(where, attribute, value)

    SET_ASIDE.update(bug.aside)
    try:
        bug.patch(patch)
        yield
    finally:
        for where, attribute, value in reversed(undo):
            setattr(where, attribute, value)
        SET_ASIDE.clear()


def tampered(
    original: Callable[..., Any],
    handle: Callable[[Any, Any], Any],
    known: type[Exception] = Exception,
) -> Callable[..., Any]:
    """A flow with its commands and replies tampered with: `handle` performs one of them.

    `handle` gets the first thing that the flow is about, and the command. `known`: what commands may
    raise, and the flow is to hear of.
    """

    def flow_of(*args: Any, **kwargs: Any) -> Any:
        flow = original(*args, **kwargs)
        reply: Any = None
        error: Exception | None = None
        while True:
            try:
                command = flow.send(reply) if error is None else flow.throw(error)
            except StopIteration as end:
                return end.value
            try:
                reply, error = (yield from handle(args[0], command)), None
            except known as trouble:
                reply, error = None, trouble

    return flow_of
