"""JSON as an application may read it, with everything that readers differ about still visible.

Python's own reader takes UTF-8, UTF-16 and UTF-32, with or without a byte order mark, and NaN; other
readers take less. Members keep their order and their repetitions, whole numbers their literal.
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
        """The values under this name; none if it is only there in another case.

        With another case beside it, all of them: to some readers names have no case.
        """
        folded = name.casefold()
        found = [value for other, value in self if other.casefold() == folded]
        return found if any(other == name for other, _ in self) else []


def read_json(body: bytes) -> Any:
    """The value of a JSON text; `ValueError` if it is none, or nests too deep."""
    try:
        return _read(body.decode(json.detect_encoding(body), "surrogatepass"))
    except RecursionError:
        raise ValueError("the text nests too deep") from None


_read = json.JSONDecoder(object_pairs_hook=Members, parse_int=WholeNumber).decode
