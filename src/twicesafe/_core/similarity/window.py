"""Recent requests of each scope, in bounded memory.

Requests are compared only within their scope, and only with those that have equal values. So one
comparison costs the same however full the window is. A scope that is full loses its own oldest
request. If all scopes together are full, the scope that was silent for the longest time loses one.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

from ..._values.keys import Key
from .reading import Reading, likeness

__all__ = ["Match", "SimilarityWindow"]

COMPARED: Final = 8
"""The newest requests with equal values that one is compared with."""


class Match(NamedTuple):
    """The most similar earlier request, how similar it is, and its age in seconds."""

    earlier: Key
    score: float
    age: float


class _Seen(NamedTuple):
    key: Key
    reading: Reading
    at: float


class _Scope:
    __slots__ = ("by_key", "by_values")

    def __init__(self) -> None:
        self.by_key: OrderedDict[bytes, _Seen] = OrderedDict()
        self.by_values: dict[bytes, list[_Seen]] = {}

    def drop_oldest(self) -> None:
        _, seen = self.by_key.popitem(last=False)
        same = self.by_values[seen.reading.values]
        same.remove(seen)
        if not same:
            del self.by_values[seen.reading.values]


class SimilarityWindow:
    """Not thread-safe: the caller has a lock."""

    def __init__(self, seconds: float, threshold: float, per_scope: int, total: int) -> None:
        self._seconds, self._threshold = seconds, threshold
        self._per_scope, self._total = per_scope, total
        self._scopes: OrderedDict[tuple[str, ...], _Scope] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def compare(self, key: Key, reading: Reading, now: float) -> Match | None:
        """Remember this request; the earlier one that it resembles most, if any does.

        A key that is known is a rerun of that request, and says nothing new.
        """
        scope = self._scope(key.scope, now)
        if key.id in scope.by_key:
            return None
        same = scope.by_values.setdefault(reading.values, [])
        best: Match | None = None
        for seen in same[: -COMPARED - 1 : -1]:
            score = likeness(reading, seen.reading)
            if score >= self._threshold and (best is None or score > best.score):
                best = Match(seen.key, score, now - seen.at)
        seen = _Seen(key, reading, now)
        same.append(seen)
        scope.by_key[key.id] = seen
        self._size += 1
        self._shrink(scope)
        return best

    def _scope(self, name: tuple[str, ...], now: float) -> _Scope:
        """The scope, without what is older than the window."""
        scope = self._scopes.get(name)
        if scope is None:
            scope = self._scopes[name] = _Scope()
        self._scopes.move_to_end(name)
        while scope.by_key and next(iter(scope.by_key.values())).at <= now - self._seconds:
            scope.drop_oldest()
            self._size -= 1
        return scope

    def _shrink(self, scope: _Scope) -> None:
        if len(scope.by_key) > self._per_scope:
            scope.drop_oldest()
            self._size -= 1
        while self._size > self._total:
            name, silent = next(iter(self._scopes.items()))
            silent.drop_oldest()
            self._size -= 1
            if not silent.by_key:
                del self._scopes[name]
