"""Collisions: how likely it is that two different operations get the same key.

Two of n random values of b bits are equal with a probability of about 1 − exp(−n(n−1) / 2ᵇ⁺¹), the birthday
bound. An id that begins with a time can only meet ids of the same millisecond. With λ ids in a millisecond on
average, a millisecond has λ²/2 pairs. A collision does harm only while the other record is kept.

    source                 random bits    where it says so
    UUIDv4                 122            RFC 9562, section 5.4
    UUIDv7                 74 per ms      RFC 9562, section 5.7: rand_a (12) and rand_b (62), if both are random
    ULID                   80 per ms      the ULID specification, in its non-monotonic form
    content hash           256            SHA-256, of `Key.from_content`
    stored identity        128            the first half of SHA-256 over scope and value: what stores compare
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from ._workload import YEAR

__all__ = ["STORED_BITS", "Collision", "collision_probability", "collisions"]

STORED_BITS: Final = 128
"""Every store keeps the first 16 bytes of a key's identity."""

_SAME_MILLISECOND: Final = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Collision:
    """One kind of key, and how likely two of a year's keys meet."""

    keys: str
    bits: int
    per_millisecond: bool
    """Whether only keys of the same millisecond can be equal."""
    probability: float
    """That any two that are kept at the same time are equal, within a year."""


_KINDS: Final = (
    ("UUIDv4", 122, False),
    ("UUIDv7", 74, True),
    ("ULID", 80, True),
    ("content hash", 256, False),
    ("stored identity", STORED_BITS, False),
)


def collision_probability(keys: float, bits: int) -> float:
    """The probability that two of ``keys`` random values of ``bits`` bits are equal."""
    return _at_least_one(keys * max(keys - 1, 0.0) / 2, bits)


def collisions(rate: float, window: float) -> tuple[Collision, ...]:
    """For each kind of key: new keys per second, and how long each is kept."""
    made = []
    for name, bits, timed in _KINDS:
        # Each new key meets those that are kept: all of the window, or those of its millisecond.
        others = rate / _SAME_MILLISECOND / 2 if timed else rate * window
        pairs = rate * YEAR * others
        made.append(
            Collision(
                keys=name, bits=bits, per_millisecond=timed, probability=_at_least_one(pairs, bits)
            )
        )
    return tuple(made)


def _at_least_one(pairs: float, bits: int) -> float:
    return -math.expm1(-pairs * 2.0**-bits)
