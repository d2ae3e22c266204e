"""Closed: takes the place of a store after its receiver, inbox, outbox or relay was closed.

So a call after `close` is refused instead of connecting again, and open objects pay nothing for the
check. Work that is running at that moment still has the store itself, so it can record its end.
"""

from __future__ import annotations

from typing import Any

from ..errors import UsageError

__all__ = ["Closed", "closed", "require_open"]


class Closed:
    """Refuses every use except another `close`."""

    def __init__(self, store: Any, owner: str) -> None:
        self.close, self.url = store.close, store.url
        self._owner = owner

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python asks for those itself
            raise AttributeError(name)
        raise self._refusal()

    def _refusal(self) -> UsageError:
        return UsageError(
            f"this {self._owner} is closed; open a new one, or close it only after its last use"
        )


def closed(store: Any, owner: str) -> Any:
    """The closed form of a store. `owner`: what the user has closed, in a word."""
    return store if isinstance(store, Closed) else Closed(store, owner)


def require_open(store: Any) -> None:
    """For what does not use the store at once."""
    if isinstance(store, Closed):
        raise store._refusal()
