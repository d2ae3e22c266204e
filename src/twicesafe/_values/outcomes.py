"""Outcomes: what a caller gets for one delivery."""

from __future__ import annotations

from typing import Generic, Literal, TypeVar

import msgspec

from .keys import Key

__all__ = ["Failure", "Outcome"]

T = TypeVar("T")


class Outcome(msgspec.Struct, Generic[T], frozen=True):
    """The recorded answer of a key, new or replayed."""

    value: T
    """What the handler returned."""
    replayed: bool
    """True: the handler did not run for this delivery."""
    attempt: int
    """The attempt that produced it; 0: it ran unprotected."""
    key: Key
    """The full key, with its scope."""
    fence: int
    """The fence of the claim that produced it."""

    @property
    def ok(self) -> Literal[True]:
        """Always True; a `Failure` has False."""
        return True

    def __repr__(self) -> str:
        """Without the value, which may be a secret: logs show this text."""
        how = "replayed" if self.replayed else "new"
        return (
            f"<Outcome {how}, value: {type(self.value).__qualname__}, attempt={self.attempt}, "
            f"key={self.key.short}, fence={self.fence}>"
        )


class Failure(msgspec.Struct, frozen=True):
    """One item of a batch that failed; the other items are not affected."""

    error: BaseException
    """What the handler raised, or why it was not run."""
    key: Key | None
    """None: the item had no valid key."""

    @property
    def ok(self) -> Literal[False]:
        """Always False."""
        return False

    def __repr__(self) -> str:
        """Without the error's text, which may be a secret."""
        key = "none" if self.key is None else self.key.short
        return f"<Failure {type(self.error).__qualname__}, key={key}>"
