"""Reads JSON as an application may, and keeps everything that parsers differ about.

Python's parser accepts UTF-8, UTF-16 and UTF-32, with or without a byte order mark, and NaN; others
accept less. Members keep their order and repetitions, and integers their literal.
"""

from __future__ import annotations

import json
from typing import Any

__all__ = ["Members", "WholeNumber", "read_json"]


class WholeNumber(str):
    """The literal of an integer."""

    __slots__ = ()


class Members(list[tuple[str, Any]]):
    """The members of an object, as they were sent."""

    __slots__ = ()

    def named(self, name: str) -> list[Any]:
        """All values of this name, in any case; none if no member has exactly this name.

        Some parsers ignore the case of names.
        """
        folded = name.casefold()
        found = [value for other, value in self if other.casefold() == folded]
        return found if any(other == name for other, _ in self) else []


def read_json(body: bytes) -> Any:
    """The value of a JSON text; `ValueError` if it is not JSON or nests too deep."""
    try:
        return _read(body.decode(json.detect_encoding(body), "surrogatepass"))
    except RecursionError:
        raise ValueError("the text nests too deep") from None


_read = json.JSONDecoder(object_pairs_hook=Members, parse_int=WholeNumber).decode
