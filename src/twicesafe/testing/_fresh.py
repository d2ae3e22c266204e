"""Keys for trials: new to the store, and yet to the handler the same key every time."""

from __future__ import annotations

from .._values.keys import Key

__all__ = ["Fresh"]


class Fresh(Key):
    """A key that nobody has used, though its value, and what is derived of it, is that of another."""

    __slots__ = ("_of",)

    _of: Key

    def __init__(self, of: Key) -> None:
        super().__init__(of.value, ("trial", Key.random().value), absolute=True)
        object.__setattr__(self, "_of", of)

    def derive(self, step: str) -> Key:
        return self._of.derive(step)
