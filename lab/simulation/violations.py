"""What may never happen, by name. A violation stops the run and carries the name of what broke."""

from __future__ import annotations

__all__ = ["SET_ASIDE", "Rules", "Violation"]

SET_ASIDE: set[str] = set()
"""Invariants that are not looked at: only for mutants that need two bugs to be seen at all."""


class Violation(AssertionError):  # noqa: N818 - what was found, not what went wrong here
    """An invariant broke: which, and how."""

    def __init__(self, name: str, how: str) -> None:
        super().__init__(f"{name}: {how}")
        self.name = name
        self.how = how


class Rules(dict[str, str]):
    """The invariants of one study: a short name for traces, and what it says."""

    def broken(self, name: str, how: str) -> None:
        assert name in self, name
        if name not in SET_ASIDE:
            raise Violation(name, how)
