"""A request becomes one digest of all its values, and a sketch of each piece of prose.

A request is text, or plain data with text in it. In data, the place of a value belongs to it, and a
text without a space is a value itself (an id, a name of an action). A sketch is MinHash in its
bottom-k form: one hash per feature, the smallest are kept. Two sketches of short texts give the
exact share of common features, those of long ones an estimate. The hash is Python's own, which has
a secret per process: a sender cannot aim at it.

With an embedding, prose is compared by the direction of its vector instead. Values and names stay as they are.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from itertools import islice
from operator import mul
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from ..._values.canonical import fields_of
from .words import exact_value, read_text, visible

__all__ = [
    "MAX_CHARACTERS",
    "MAX_DEPTH",
    "MAX_MEANINGS",
    "MAX_PARTS",
    "Embedding",
    "Reading",
    "likeness",
    "read_request",
]

Embedding: TypeAlias = Callable[[str], "array[float]"]
"""The words of a text as a vector of length 1."""

MAX_CHARACTERS: Final = 16_000
"""Of all texts of a request together."""
MAX_PARTS: Final = 1000
"""Values in a request."""
MAX_DEPTH: Final = 16
MAX_BITS: Final = 4096
"""Of an int."""
KEPT: Final = 128
"""Hashes in a sketch."""
MAX_WORDS: Final = 512
"""Different words of a text that are remembered, to look for names."""
STEM: Final = 4
"""First letters of a word that count as a separate feature."""
MAX_MEANINGS: Final = 16
"""Texts of a request that are embedded: a vector takes 1 KB, and as long as a whole short request by words."""
_NO_SKETCH: Final = array("q")
_NO_MEANING: Final = array("f")


class Prose(NamedTuple):
    """What is remembered of one text."""

    sketch: array[int]
    """Empty with an embedding."""
    words: array[int]
    names: array[int]
    meaning: array[float]
    """Empty without an embedding, and of a text without words."""


class Reading(NamedTuple):
    """What is remembered of a request. It holds no readable text."""

    values: bytes
    """A digest of every value and its place, and of the places of prose."""
    prose: tuple[Prose, ...]
    """One for each text, in the order of their places."""


class _NotComparedError(Exception):
    """The request is larger, deeper or stranger than what is compared."""


def read_request(request: object, embed: Embedding | None = None) -> Reading | None:
    """The reading of a request; None if it says nothing, or is too large or too unusual to be compared."""
    budget = _Budget()
    try:
        parts = sorted(_parts(request, "", budget, 0), key=lambda part: part[0])
        if embed and sum(kind == "prose" for _, kind, _ in parts) > MAX_MEANINGS:
            raise _NotComparedError
    except _NotComparedError:
        return None
    values: list[object] = []
    prose = []
    for place, kind, content in parts:
        if kind != "prose":
            values.append((place, kind, content))
            continue
        text = read_text(content)
        values.append((place, kind, text.values))
        words, names = _hashes(text.prose), _hashes(text.names)
        if embed is None:
            prose.append(Prose(_sketch(text.prose), words, names, _NO_MEANING))
        else:
            meaning = embed(" ".join(text.prose)) if text.prose else _NO_MEANING
            prose.append(Prose(_NO_SKETCH, words, names, meaning))
    if not any(kind != "prose" for _, kind, _ in parts) and not _says_something(values, prose):
        return None
    digest = hashlib.blake2b(repr(values).encode("utf-8", "surrogatepass"), digest_size=16)
    return Reading(digest.digest(), tuple(prose))


def _says_something(values: list[Any], prose: list[Prose]) -> bool:
    return any(text.words for text in prose) or any(any(kinds) for _, _, kinds in values)


def likeness(one: Reading, other: Reading) -> float:
    """From 0 to 1: of the texts at each place, those that are least alike. The values must be equal."""
    return min(map(_shared, one.prose, other.prose), default=1.0)


def _shared(one: Prose, other: Prose) -> float:
    if one == other:
        return 1.0
    if not _have_same_names(one, other):
        return 0.0
    if one.meaning and other.meaning:
        cosine: float = sum(map(mul, one.meaning, other.meaning))
        return min(1.0, max(0.0, cosine))
    first, second = set(one.sketch), set(other.sketch)
    both, either = first & second, first | second
    if max(len(first), len(second)) < KEPT:
        return len(both) / max(1, len(either))
    smallest = sorted(either)[:KEPT]
    return sum(hashed in both for hashed in smallest) / len(smallest)


def _have_same_names(one: Prose, other: Prose) -> bool:
    """A name in one text must be a word of the other (it may have lost its capital letter), and
    names that both have must come in one order. A payment from Alice to Bob is not one from Bob to
    Alice."""
    if not set(one.names) <= set(other.words) or not set(other.names) <= set(one.words):
        return False
    common = set(one.names) & set(other.names)
    return [name for name in one.names if name in common] == [
        name for name in other.names if name in common
    ]


def _hashes(words: list[str]) -> array[int]:
    """Each word once, in its order; at most `MAX_WORDS`, so names behind them are found in no other text."""
    return array("q", map(hash, islice(dict.fromkeys(words), MAX_WORDS)))


def _sketch(words: list[str]) -> array[int]:
    """Each word, and its first letters: 'invoices' has half in common with 'invoice', and short words count less."""
    features = {hash(word) for word in words} | {hash(word[:STEM]) for word in words}
    return array("q", sorted(features)[:KEPT])


class _Budget:
    """What may still be read."""

    def __init__(self) -> None:
        self.parts = MAX_PARTS
        self.characters = MAX_CHARACTERS

    def spend(self, characters: int) -> None:
        self.parts -= 1
        self.characters -= characters
        if self.parts < 0 or self.characters < 0:
            raise _NotComparedError


def _parts(
    value: object, place: str, budget: _Budget, depth: int
) -> Iterator[tuple[str, str, str]]:
    """Place, kind and content of each value in a request."""
    if depth > MAX_DEPTH:
        raise _NotComparedError
    if isinstance(value, str) and not isinstance(value, Enum):
        budget.spend(len(value))
        if place and not any(map(str.isspace, value)):
            yield place, "text", exact_value(visible(value))
        else:
            yield place, "prose", str.__str__(value)
        return
    fields = fields_of(value)
    if fields is not None:
        for name, item in fields.items.items():
            budget.spend(len(name))
            yield from _parts(item, f"{place}.{name!r}", budget, depth + 1)
    elif isinstance(value, (list, tuple)):
        for at, item in enumerate(value):
            budget.spend(0)
            yield from _parts(item, f"{place}[{at:04}]", budget, depth + 1)
    else:
        budget.spend(0)
        yield place, *_scalar(value)


def _scalar(value: object) -> tuple[str, str]:
    """Kind and content of a value without parts. Equal amounts are equal, whatever their type."""
    match value:
        case None | bool() | Enum():
            return type(value).__name__, getattr(value, "name", str(value))
        case int() | float() | Decimal():
            return "number", _plain(value)
        case datetime():
            moment = value if value.tzinfo is None else value.astimezone(UTC)
            return "moment", moment.isoformat()
        case date() | time():
            return "moment", value.isoformat()
        case UUID() | timedelta():
            return type(value).__name__, str(value)
        case bytes():
            return "bytes", hashlib.blake2b(value, digest_size=16).hexdigest()
        case _:
            raise _NotComparedError


def _plain(number: float | Decimal) -> str:
    """One form for equal amounts, without rounding, and short for any exponent."""
    if isinstance(number, int) and number.bit_length() > MAX_BITS:
        raise _NotComparedError
    exact = Decimal(repr(number)) if isinstance(number, float) else Decimal(number)
    if not exact.is_finite():
        return str(exact)
    sign, digits, exponent = exact.as_tuple()
    written = "".join(map(str, digits))
    kept = written.rstrip("0")
    if not kept:
        return "0"
    return f"{'-' * sign}{kept.lstrip('0')}e{int(exponent) + len(written) - len(kept)}"
