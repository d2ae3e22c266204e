"""Compares the states that trials of a handler left behind, and describes the difference."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import (
    Collection,
    ItemsView,
    Iterator,
    KeysView,
    Mapping,
    Sequence,
    ValuesView,
)
from collections.abc import (
    Set as AbstractSet,
)
from dataclasses import dataclass, fields, is_dataclass
from decimal import Decimal
from numbers import Real
from typing import Any

from ..errors import ConfigurationError

__all__ = [
    "COPIED",
    "Trial",
    "copied",
    "difference",
    "plain_copy",
    "refuse_unseen",
    "same",
    "table",
]

WIDE = 60

COPIED = (
    "every delivery gets its own copy of the arguments, as messages do: bind what the handler changes "
    "with functools.partial"
)


@dataclass
class Trial:
    """One way to deliver a call, and its outcome. An empty ``fault``: all is well."""

    name: str
    starts: int = 0
    value: Any = None
    state: Any = None
    fault: str = ""
    note: str = ""
    error: BaseException | None = None
    kind: str = "delivery"
    """Or "crash", "kill" or "interleaving"."""
    story: tuple[str, ...] = ()
    """What happened, step by step. Only for interleavings."""


def copied(value: Any) -> Any:
    """A copy of the present state, which later changes do not reach."""
    if isinstance(value, (KeysView, ValuesView, ItemsView, Iterator)):
        value = list(value)
    try:
        return copy.deepcopy(value)
    except Exception:
        return value  # a row of a database, say


def plain_copy(value: Any) -> Any:
    """Plain data is copied, at every level; any other object (a shop, a connection) is shared."""
    if type(value) is dict:
        return {key: plain_copy(item) for key, item in value.items()}
    if type(value) in (list, tuple, set):
        return type(value)(map(plain_copy, value))
    return value


def same(one: Any, other: Any) -> bool:
    """Equal, and of the same types at every level: 1 is neither True nor 1.0.

    Objects without ``__eq__`` are equal if their attributes are.
    """
    if type(one) is not type(other):
        return False
    if isinstance(one, Mapping):
        return (
            len(one) == len(other)
            and (not isinstance(one, dict) or same(set(one), set(other)))
            and all(key in other and same(value, other[key]) for key, value in one.items())
        )
    if isinstance(one, AbstractSet):
        theirs = {item: item for item in other}
        return len(one) == len(theirs) and all(
            item in theirs and same(item, theirs[item]) for item in one
        )
    if isinstance(one, Sequence) and not isinstance(one, (str, bytes, bytearray)):
        return len(one) == len(other) and all(map(same, one, other))
    if "__eq__" not in _defined(type(one)) and hasattr(one, "__dict__") and not callable(one):
        return one is other or same(vars(one), vars(other))
    if not one == other:  # noqa: SIM201 - what `__eq__` says counts
        return bool(one != one and other != other)  # noqa: PLR0124 - NaN
    return not is_dataclass(one) or all(
        _agree(getattr(one, each.name), getattr(other, each.name))
        for each in fields(one)
        if each.compare
    )


def _agree(one: Any, other: Any) -> bool:
    """Fields of two equal objects: if they differ, or are arrays, the ``__eq__`` of the objects has judged them."""
    return (one == other) is not True or same(one, other)


def refuse_unseen(name: str, before: Any, after: Any) -> None:
    """Raise if the snapshot does not see the effect: then it would not see a second one either."""
    if same(before, after):
        raise ConfigurationError(
            f"the clean run of {name} changed nothing in the snapshot, so the snapshot could not show a "
            f"mistake: return what the handler changes (it returned {before!r:.60}); {COPIED}"
        )


def _defined(kind: type) -> set[str]:
    return {name for base in kind.__mro__[:-1] for name in vars(base)}


def difference(expected: Any, found: Any) -> str:
    """Text for the difference: doubled, lost, more, less or different."""
    shown = f"{_short(found)} instead of {_short(expected)}"
    if type(expected) is not type(found):
        return f"{shown} ({type(found).__name__}, not {type(expected).__name__})"
    if _is_amount(expected) and _is_amount(found):
        word = "doubled" if found == 2 * expected != 0 else "more" if found > expected else "less"
        return f"{word}: {shown}"
    if isinstance(expected, Mapping) and expected.keys() == found.keys():
        for key in expected:
            if not same(expected[key], found[key]):
                return f"at {_short(key)} {difference(expected[key], found[key])}"
    if isinstance(expected, Collection) and not isinstance(expected, (str, bytes, bytearray)):
        missing, extra = _items(expected) - _items(found), _items(found) - _items(expected)
        if extra and not missing:
            return f"doubled: {shown}" if set(extra) <= set(_items(expected)) else f"more: {shown}"
        if missing and not extra:
            return f"lost: {shown}"
    return f"different: {shown}"


def table(trials: Sequence[Trial]) -> str:
    """All trials, also those that went well: they help to see where it goes wrong."""
    rows = [("trial", "starts", ""), *((t.name, str(t.starts), _verdict(t)) for t in trials)]
    width = max(len(name) for name, _, _ in rows)
    return "\n".join(
        f"  {name:<{width}}  {starts:>6}  {verdict}".rstrip() for name, starts, verdict in rows
    )


def _verdict(trial: Trial) -> str:
    return f"WRONG  {trial.fault}" if trial.fault else f"ok     {trial.note}"


def _is_amount(value: Any) -> bool:
    return isinstance(value, (Real, Decimal)) and not isinstance(value, bool)


def _items(collection: Collection[Any]) -> Counter[str]:
    if isinstance(collection, Mapping):
        return Counter(f"{key!r}: {value!r}" for key, value in collection.items())
    return Counter(map(repr, collection))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= WIDE else f"{text[: WIDE - 1]}…"
