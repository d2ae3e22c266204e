"""The canonical form of JSON: member order and white space do not count, everything else does.

Different values stay different. Numbers are compared as written: ``1``, ``1.0`` and ``1e0`` differ, and
large integers and long decimals keep every digit. ``1``, ``"1"`` and ``true`` differ, absent differs from
null, arrays keep their order, and text is not normalised.

If parsers may read a text in two ways, it has no canonical form, and its bytes are compared instead. This
is text that is not strict JSON or nests too deep, and objects with two members of one name. Parsers take the
first or the last of them; some (Go, .NET) ignore case, so ``a`` and ``A`` are one name; and for some a
NUL ends a name.

The form is MessagePack: an object is a map with sorted keys, and a number is the bytes of its literal. It
is made in one pass, so its cost grows with the length of the text, not with its depth.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from msgspec import msgpack

__all__ = ["json_form"]

_pack = msgpack.Encoder(order="deterministic").encode


def json_form(body: bytes) -> bytes | None:
    """The canonical form of a JSON text, or None if it has none."""
    if b"\\u0000" in body:
        return None
    try:
        return _pack(_read(body.decode("utf-8")))
    except (ValueError, RecursionError):  # not UTF-8, not JSON, a lone surrogate, too deep
        return None


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(set(map(str.casefold, members))) != len(pairs):
        raise ValueError("two members have the same name")
    return members


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_read = json.JSONDecoder(
    object_pairs_hook=_members,
    parse_int=str.encode,
    parse_float=str.encode,
    parse_constant=_refuse,
).decode
