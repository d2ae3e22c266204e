"""JSON in one form: member order and white space do not count, everything else does.

What must never be conflated is not: numbers are compared as they were written (``1``, ``1.0`` and
``1e0`` are three; integers beyond 2**53 and long decimals keep every digit), ``1``, ``"1"`` and
``true`` are three, absent is not null, arrays keep their order, text is not normalised, and members
given twice count twice. A text that is not strict JSON, or nests too deep, has no form: its octets
are compared instead.

The form is MessagePack: an object is a map with sorted keys, a number is the octets of its literal.
"""

from __future__ import annotations

import json
from operator import itemgetter
from typing import Any, Final, NoReturn

from msgspec import msgpack

__all__ = ["json_form"]

_pack = msgpack.Encoder(order="deterministic").encode
_TWICE: Final = 1
"""The extension code of an object that has a member twice."""


def json_form(body: bytes) -> bytes | None:
    """The form of a JSON text; None if it has none."""
    try:
        return _pack(_read(body.decode("utf-8")))
    except (ValueError, RecursionError):  # not UTF-8, not JSON, a lone surrogate, too deep
        return None


def _members(pairs: list[tuple[str, Any]]) -> Any:
    members = dict(pairs)
    if len(members) == len(pairs):
        return members
    return msgpack.Ext(_TWICE, _pack(sorted(pairs, key=itemgetter(0))))


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


_read = json.JSONDecoder(
    object_pairs_hook=_members,
    parse_int=str.encode,
    parse_float=str.encode,
    parse_constant=_refuse,
).decode
