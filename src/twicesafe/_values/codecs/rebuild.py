"""Rebuilding: tagged JSON back into the value it was written from.

The bytes come from a store that others may write to, so they are treated as hostile. A tag picks
one of the readers below, a class name picks one of the classes that the handler's annotation
mentions, and everything else is an error. See `tagged` for the format.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, Flag
from typing import Any, Final
from uuid import UUID

import msgspec

from ...errors import CorruptRecordError
from ..object_fields import BASES, shape_of, with_attributes
from .annotations import classes_in
from .tagged import MAX_DEPTH, is_zone_name

__all__ = ["from_tagged"]


def from_tagged(tree: Any, declared: Any) -> Any:
    """The value of a tree; `ValueError` if it is malformed, `CorruptRecordError` if it does not
    fit the classes of today."""
    try:
        return _Reader(declared).value(tree, 0)
    except (ArithmeticError, AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"malformed tag: {type(error).__name__}") from error


class _Reader:
    __slots__ = ("_declared",)

    def __init__(self, declared: Any) -> None:
        self._declared = declared

    def value(self, node: Any, depth: int) -> Any:
        kind = type(node)
        if kind is not dict and kind is not list:
            return node
        if depth > MAX_DEPTH:
            raise ValueError("nested too deep")
        depth += 1
        if kind is list:
            return [self.value(item, depth) for item in node]
        if "$" not in node:
            return {key: self.value(item, depth) for key, item in node.items()}
        return _READERS[node["$"]](self, node, depth)

    def items(self, node: Any, depth: int) -> list[Any]:
        return [self.value(item, depth) for item in _of(list, node["v"])]

    def pairs(self, node: Any, depth: int) -> Any:
        return {self.value(k, depth): self.value(v, depth) for k, v in _of(list, node["v"])}

    def _fields(self, node: Any, depth: int) -> dict[str, Any]:
        return {name: self.value(item, depth) for name, item in _of(dict, node).items()}

    def _class(self, node: Any, kind: type | tuple[type, ...] = object) -> type:
        name = _of(str, node["c"])
        cls = classes_in(self._declared).get(name)
        if cls is None or not issubclass(cls, kind):
            raise CorruptRecordError(
                f"the stored result contains an object of class {name[:60]!r}, which the handler's "
                "return annotation does not mention; was the class renamed?"
            )
        return cls

    def enum(self, node: Any, depth: int) -> Any:
        cls: Any = self._class(node, Enum)
        member = self.value(node["v"], depth)
        if issubclass(cls, Flag):
            return cls(_of(int, member))
        return cls.__members__[_of(str, member)]

    def record(self, node: Any, depth: int) -> Any:
        cls = self._class(node)
        shape = shape_of(cls)
        fields = self._fields(node["v"], depth)
        state = self._fields(node.get("s", {}), depth)
        return self._build(cls, lambda: shape.build(fields, state))  # type: ignore[union-attr]

    def model(self, node: Any, _: int) -> Any:
        cls: Any = self._class(node)
        return self._build(cls, lambda: cls.model_validate_json(msgspec.json.encode(node["v"])))

    def based(self, node: Any, depth: int) -> Any:
        cls = self._class(node, tuple(BASES))
        inner = self.value(node["v"], depth)
        held = self._fields(node.get("s", {}), depth)
        return self._build(cls, lambda: with_attributes(cls(inner), held))

    def _build(self, cls: type, build: Callable[[], Any]) -> Any:
        try:
            return build()
        except Exception as error:
            raise CorruptRecordError(
                f"the stored result holds a {cls.__qualname__} that the class as it is now does "
                f"not accept ({type(error).__name__}); keep old fields readable by giving new ones "
                "defaults"
            ) from error


def _of(kind: type, node: Any) -> Any:
    if type(node) is not kind:
        raise TypeError(f"expected {kind.__name__}")
    return node


def _read_zone(node: Any) -> tzinfo | None:
    if "z" in node:
        from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

        if not is_zone_name(node["z"]):
            raise ValueError("not the name of a time zone")
        try:
            return ZoneInfo(node["z"])
        except (ZoneInfoNotFoundError, OSError) as error:  # OSError: a folder of zones
            raise CorruptRecordError(
                f"the stored result is in the time zone {node['z']!r}, which this machine does not "
                "know: install the tzdata package"
            ) from error
    if "o" not in node:
        return None
    offset = timedelta(microseconds=_of(int, node["o"]))
    if "n" in node:
        return timezone(offset, node["n"])
    return timezone(offset) if offset else UTC


def _read_zoned(read: Callable[[str], Any]) -> Callable[[_Reader, Any, int], Any]:
    return lambda _, node, __: read(_of(str, node["v"])).replace(
        tzinfo=_read_zone(node), fold=node.get("f", 0)
    )


def _bytes(node: Any) -> bytes:
    return binascii.a2b_base64(_of(str, node["v"]), strict_mode=True)


_READERS: Final[dict[str, Callable[[_Reader, Any, int], Any]]] = {
    "map": _Reader.pairs,
    "tuple": lambda r, n, d: tuple(r.items(n, d)),
    "set": lambda r, n, d: set(r.items(n, d)),
    "frozenset": lambda r, n, d: frozenset(r.items(n, d)),
    "object": _Reader.record,
    "model": _Reader.model,
    "based": _Reader.based,
    "enum": _Reader.enum,
    "int": lambda _, n, __: int(_of(str, n["v"]), 16),
    "float": lambda _, n, __: float(_of(str, n["v"])),
    "text": lambda _, n, __: _bytes(n).decode("utf-8", "surrogatepass"),
    "bytes": lambda _, n, __: _bytes(n),
    "bytearray": lambda _, n, __: bytearray(_bytes(n)),
    "decimal": lambda _, n, __: Decimal(_of(str, n["v"])),
    "uuid": lambda _, n, __: UUID(hex=_of(str, n["v"])),
    "datetime": _read_zoned(datetime.fromisoformat),
    "time": _read_zoned(time.fromisoformat),
    "date": lambda _, n, __: date.fromisoformat(_of(str, n["v"])),
    "timedelta": lambda _, n, __: timedelta(*_of(list, n["v"])),
}
