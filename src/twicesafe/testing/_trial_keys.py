"""Keys for trials: new to the store, but the same key to the handler each time."""

from __future__ import annotations

from .._values.keys import Key

__all__ = ["TrialKey"]


class TrialKey(Key):
    """A new key with the value of another key, and with its derived keys."""

    __slots__ = ("_of",)

    _of: Key

    def __init__(self, of: Key) -> None:
        super().__init__(of.value, ("trial", Key.random().value), absolute=True)
        object.__setattr__(self, "_of", of)

    def derive(self, step: str) -> Key:
        return self._of.derive(step)
