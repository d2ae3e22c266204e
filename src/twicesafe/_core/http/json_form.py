"""JSON in one form: member order and white space do not count, everything else does.

What must never be conflated is not: numbers are compared as they were written (``1``, ``1.0`` and
``1e0`` are three; integers beyond 2**53 and long decimals keep every digit), ``1``, ``"1"`` and
``true`` are three, absent is not null, arrays keep their order, and text is not normalised.

A text that readers may understand in two ways has no form, and its octets are compared instead: what
is not strict JSON or nests too deep, and an object with two members of one name. Some readers take the
first of these, some the last, and to some (Go, .NET) names have no case, so ``a`` and ``A`` are one; to
some a NUL ends a name.

The form is MessagePack: an object is a map with sorted keys, a number is the octets of its literal. It
is made in one pass: its cost grows with the text, not with its depth.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from msgspec import msgpack

__all__ = ["json_form"]

_pack = msgpack.Encoder(order="deterministic").encode


def json_form(body: bytes) -> bytes | None:
    """The form of a JSON text; None if it has none."""
    if b"\\u0000" in body:
        return None
    try:
        return _pack(_read(body.decode("utf-8")))
    except (ValueError, RecursionError):  # not UTF-8, not JSON, a lone surrogate, too deep
        return None


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name.casefold() for name, _ in pairs}) != len(pairs):
        raise ValueError("a member is there twice")
    return dict(pairs)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


_read = json.JSONDecoder(
    object_pairs_hook=_members,
    parse_int=str.encode,
    parse_float=str.encode,
    parse_constant=_refuse,
).decode
