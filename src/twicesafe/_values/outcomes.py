"""Outcomes: what a caller gets for one delivery."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from .keys import Key

__all__ = ["Failure", "Outcome"]

T = TypeVar("T")


class Outcome(msgspec.Struct, Generic[T], frozen=True):
    """The one recorded answer to a key, whether it was made just now or before."""

    value: T
    """What the handler returned, now or then."""
    replayed: bool
    """True: the handler did not run for this delivery."""
    attempt: int
    """Which start of the handler gave it; 0: it ran unprotected."""
    key: Key
    fence: int

    @property
    def ok(self) -> bool:
        return True


class Failure(msgspec.Struct, frozen=True):
    """One item of a batch that has no answer; its neighbours are not concerned."""

    error: BaseException
    """What the handler raised, or why it was not run."""
    key: Key | None
    """None: the item had no usable key."""

    @property
    def ok(self) -> bool:
        return False
