"""Owner tokens: who made this claim. 128 bits, made before the first send (P2).

Unique across processes by 80 random bits and within one by a counter, which is ten times cheaper
than fresh randomness for each. A forked child draws a random part of its own.
"""

from __future__ import annotations

import itertools
import os

__all__ = ["chance", "new_owner"]

_prefix = b""
_counter = itertools.count()


def _reseed() -> None:
    global _prefix, _counter
    _prefix = os.urandom(10)
    _counter = itertools.count(int.from_bytes(os.urandom(4), "big"))


def new_owner() -> bytes:
    """A fresh owner token; kept over the network retries of its claim."""
    return _prefix + (next(_counter) & 0xFFFFFFFFFFFF).to_bytes(6, "big")


def chance(owner: bytes, turn: int) -> float:
    """A number from 0 to 1 for jitter: differs per owner and turn, and replays with them."""
    mixed = (int.from_bytes(owner, "big") ^ (turn * 0x9E3779B97F4A7C15)) * 0xD6E8FEB86659FD93
    return (mixed >> 32 & 0xFFFF) / 0xFFFF


_reseed()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reseed)
