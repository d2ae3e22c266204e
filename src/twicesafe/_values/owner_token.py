"""Owner tokens: who made this claim. 128 bits, created before the first send (P2).

80 random bits make them unique across processes, and a counter within one process, which is ten
times cheaper than random bits for each token. A forked child gets its own random part.

A claim may be made before its handler can start: `process_many` claims a whole batch at once. Then
its token begins with `AHEAD`. If its lease expires, the next claim does not count it:
most likely its handler never started. Every store keeps the token anyway, so the mark needs no column.
"""

from __future__ import annotations

import itertools
import os

from .._forking import in_child

__all__ = ["AHEAD", "chance", "is_ahead", "new_owner", "new_owner_ahead"]

AHEAD = b"ahead"
"""How the token of a claim that is made before its handler can start begins."""

_prefix = b""
_counter = itertools.count()


def _reseed() -> None:
    global _prefix, _counter
    _prefix = os.urandom(10)
    _counter = itertools.count(int.from_bytes(os.urandom(4), "big"))


def new_owner() -> bytes:
    """A new owner token; network retries of its claim use the same one."""
    return _prefix + (next(_counter) & 0xFFFFFFFFFFFF).to_bytes(6, "big")


def new_owner_ahead() -> bytes:
    """A new token for a claim that is made before its handler can start."""
    return AHEAD + new_owner()[len(AHEAD) :]


def is_ahead(owner: bytes) -> bool:
    return owner.startswith(AHEAD)


def chance(owner: bytes, turn: int) -> float:
    """A number from 0 to 1 for jitter, determined by owner and turn."""
    mixed = (int.from_bytes(owner, "big") ^ (turn * 0x9E3779B97F4A7C15)) * 0xD6E8FEB86659FD93
    return (mixed >> 32 & 0xFFFF) / 0xFFFF


_reseed()
in_child(_reseed)
