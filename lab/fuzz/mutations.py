"""Mutations: from good input to input that is almost good, and on from there.

A pool begins with the seeds. Each step takes a seed or one of the pool and changes it in one to four
ways. What was accepted, and a little of what was not, is kept in the pool, so that changes add up
without leaving all sense behind. Everything follows from one seed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

__all__ = ["Mutator"]

POOL = 256
LONGEST = 4096
ODD = (0, 9, 10, 13, 32, 34, 44, 59, 61, 92, 127, 128, 255)
"""Octets that mean something to some parser."""


class Mutator:
    def __init__(
        self, seeds: Sequence[bytes], words: Sequence[bytes], chance: random.Random
    ) -> None:
        self._seeds, self._words, self._chance = list(seeds), list(words), chance
        self._pool = list(seeds)
        self._ways = (
            self._flip, self._odd, self._insert, self._remove, self._repeat, self._splice,
            self._random, self._truncate,
        )  # fmt: skip

    def stream(self, count: int) -> Iterator[bytes]:
        chance = self._chance.random
        yield from self._seeds[:count]
        for _ in range(count - len(self._seeds)):
            source = self._seeds if chance() < 0.3 else self._pool
            octets = source[int(chance() * len(source))]
            for _ in range(1 + int(chance() * chance() * 4)):
                octets = self._ways[int(chance() * len(self._ways))](octets)
            yield octets[:LONGEST]

    def learn(self, octets: bytes, accepted: bool) -> None:
        """What became of an input."""
        chance = self._chance.random
        if not accepted and chance() > 0.01:
            return
        if len(self._pool) < POOL:
            self._pool.append(octets)
        else:
            self._pool[int(chance() * POOL)] = octets

    def _at(self, octets: bytes) -> int:
        return int(self._chance.random() * (len(octets) + 1))

    def _flip(self, octets: bytes) -> bytes:
        at = self._at(octets)
        if at >= len(octets):
            return octets
        changed = octets[at] ^ (1 << int(self._chance.random() * 8))
        return octets[:at] + bytes((changed,)) + octets[at + 1 :]

    def _odd(self, octets: bytes) -> bytes:
        at = self._at(octets)
        return octets[:at] + bytes((self._chance.choice(ODD),)) + octets[at + 1 :]

    def _insert(self, octets: bytes) -> bytes:
        at = self._at(octets)
        return octets[:at] + self._chance.choice(self._words) + octets[at:]

    def _remove(self, octets: bytes) -> bytes:
        at = self._at(octets)
        return octets[:at] + octets[at + 1 + int(self._chance.random() * 8) :]

    def _repeat(self, octets: bytes) -> bytes:
        at = self._at(octets)
        piece = octets[at : at + 1 + int(self._chance.random() * 16)]
        return octets[:at] + piece * int(1 + self._chance.random() * 20) + octets[at:]

    def _splice(self, octets: bytes) -> bytes:
        other = self._chance.choice(self._pool)
        return octets[: self._at(octets)] + other[self._at(other) :]

    def _random(self, octets: bytes) -> bytes:
        at = self._at(octets)
        return octets[:at] + self._chance.randbytes(int(self._chance.random() * 12)) + octets[at:]

    def _truncate(self, octets: bytes) -> bytes:
        return octets[: self._at(octets)]
