"""Every delivery starts in a clean context: no key and no claim of an earlier one is in it.

For any edge that serves many deliveries on one channel (a connection, a stream, a consumer's loop).
Its test lets deliveries with and without keys follow each other, and asks in two places:

    outside   before the edge, where the server, the broker's client or the pool calls it
    inside    in the handler

`key_here()` is what is asked there; it is text, so that it can come back from another process. Then
`require_clean(starts)`: nothing is found outside, and inside each handler finds its own key or none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from twicesafe import current_claim, current_key

__all__ = ["Start", "key_here", "require_clean"]

NONE = "-"


@dataclass(frozen=True)
class Start:
    """What one delivery found."""

    sent: str
    """The key that it was sent with."""
    outside: str
    inside: str


def key_here() -> str:
    """The key that this code runs under, or `NONE`."""
    key, claim = current_key(), current_claim()
    assert (key is None) == (claim is None)
    return NONE if key is None else key.value


def require_clean(starts: Iterable[Start]) -> None:
    found = list(starts)
    assert len(found) > 1, "one delivery alone inherits nothing"
    assert {start.sent == NONE for start in found} == {True, False}, (
        "send some with and some without"
    )
    dirty = [start for start in found if (start.outside, start.inside) != (NONE, start.sent)]
    assert dirty == []
