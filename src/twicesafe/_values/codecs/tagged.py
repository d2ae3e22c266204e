"""Tagged JSON: the self-describing form of values that plain JSON does not have.

What JSON has stays as it is. The rest is an object with the member ``"$"``, which names its kind:

    {"$": "decimal", "v": "1.50"}      {"$": "tuple", "v": [1, 2]}     {"$": "map", "v": [[k, v]]}
    {"$": "object", "c": "Order", "v": {"id": 7}}                      {"$": "enum", "c": …, "v": …}

A user's dict that has a key ``"$"`` itself is written as a map, so no data can pose as a tag.
``"c"`` is a class's qualified name; it chooses among the classes that the declared type mentions
and does nothing else. Cycles, more than 100 levels and unsupported types are refused; the error
names the place and never shows the value. `rebuild` reads this format.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, Flag
from math import isfinite
from types import NoneType
from typing import Any, Final, NoReturn
from uuid import UUID

import msgspec

from ...errors import NotStorableError
from ..object_fields import BASES, Shape, attributes_of, base_of, shape_of
from .annotations import classes_in

__all__ = ["MAX_DEPTH", "is_zone_name", "to_tagged"]

MAX_DEPTH: Final = 100
_MICROSECOND: Final = timedelta(microseconds=1)
_ZONE_CHARACTERS: Final = frozenset(
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_+-/"
)
_AS_IS: Final = frozenset((bool, NoneType))


def to_tagged(value: Any, declared: Any) -> tuple[Any, bool]:
    """The tree to write as JSON, and whether it needs the declared type to be read again."""
    writer = _Writer(value, declared)
    try:
        return writer.form(value), writer.rich
    except NotStorableError:
        raise
    except Exception as error:  # a property of the user's class raised, or the stack is nearly full
        raise NotStorableError(
            f"the value could not be read to be stored ({type(error).__name__})", value=value
        ) from error


def is_zone_name(name: object) -> bool:
    """A name that is safe to look up, even from a hostile source: no dots, so no other paths."""
    return isinstance(name, str) and 0 < len(name) <= 64 and _ZONE_CHARACTERS.issuperset(name)


class _Writer:
    __slots__ = ("_declared", "_open", "_path", "_root", "rich")

    def __init__(self, root: Any, declared: Any) -> None:
        self._root = root
        self._declared = declared
        self._open: set[int] = set()
        self._path: list[tuple[str, object]] = []
        self.rich = False

    def form(self, value: Any) -> Any:
        kind: type = type(value)
        if kind in _AS_IS:
            return value
        write = _WRITERS.get(kind)
        if write is not None:
            return write(self, value)
        if isinstance(value, UUID):
            return _uuid(self, value)  # drivers derive their own, which equals ours
        return self._rich(value, kind)

    def _rich(self, value: Any, kind: type) -> Any:
        name = kind.__qualname__
        if isinstance(value, Enum):
            self._require_declared(kind)
            member = value.value if isinstance(value, Flag) else value.name
            return {"$": "enum", "c": name, "v": self.form(member)}
        shape = shape_of(kind)
        if shape is not None:
            self._require_declared(kind)
            return self.within(value, lambda: self._object(value, name, shape))
        base = base_of(kind)
        if base is not None:
            self._require_declared(kind)
            return self.within(value, lambda: self._based(value, name, BASES[base](value)))
        return self._refuse(
            f"is a {kind.__module__}.{name}, which cannot be stored: return plain data, a "
            "dataclass or a model, or give the policy a codec that knows it"
        )

    def _object(self, value: Any, name: str, shape: Shape) -> Any:
        depth, opened = len(self._path), set(self._open)
        try:
            form = {"$": "object", "c": name, "v": self._fields(".{:.40}", shape.read(value))}
            state = shape.state(value)
            return {**form, "s": self._fields(".{:.40}", state)} if state else form
        except NotStorableError:
            del self._path[depth:]
            self._open = opened
            dumped = _dump_model(value)
            if dumped is None:
                raise
            return {"$": "model", "c": name, "v": dumped[0]}

    def _based(self, value: Any, name: str, inner: Any) -> Any:
        form = {"$": "based", "c": name, "v": self.form(inner)}
        held = attributes_of(value)
        return {**form, "s": self._fields(".{:.40}", held)} if held else form

    def _require_declared(self, kind: type) -> None:
        self.rich = True
        name = kind.__qualname__
        known = classes_in(self._declared)
        if name in known and known[name] is None:
            self._refuse(f"is a {name}, and the return annotation has two classes of that name")
        if known.get(name) is not kind:
            self._refuse(
                f"is a {kind.__module__}.{name}, which a replay can only rebuild if the handler's "
                f"return annotation mentions it: annotate the handler (-> {kind.__name__}), pass "
                f"returns={kind.__name__} to claim or resolve, or return plain data"
            )

    def within(self, value: object, write: Callable[[], Any]) -> Any:
        here = id(value)
        if here in self._open:
            self._refuse("contains itself, which cannot be stored")
        if len(self._open) >= MAX_DEPTH:
            del self._path[4:]
            self._refuse(f"… is nested more than {MAX_DEPTH} levels deep, which cannot be stored")
        self._open.add(here)
        form = write()
        self._open.discard(here)
        return form

    def items(self, items: Iterable[Any]) -> list[Any]:
        forms = []
        for index, item in enumerate(items):
            self._path.append(("[{}]", index))
            forms.append(self.form(item))
            self._path.pop()
        return forms

    def _fields(self, style: str, items: Mapping[str, Any]) -> dict[str, Any]:
        forms = {}
        for name, item in items.items():
            self._path.append((style, name))
            forms[name] = self.form(item)
            self._path.pop()
        return forms

    def mapping(self, value: dict[Any, Any]) -> Any:
        if "$" not in value and all(type(key) is str and _is_text(key) for key in value):
            return self.within(value, lambda: self._fields("[{!r:.40}]", value))
        return self.within(value, lambda: {"$": "map", "v": self._pairs(value)})

    def _pairs(self, value: dict[Any, Any]) -> list[list[Any]]:
        pairs = []
        for key, item in value.items():
            self._path.append(("[a {} as key]", type(key).__name__))
            pairs.append([self.form(key), self.form(item)])
            self._path.pop()
        return pairs

    def zoned(self, tag: str, value: datetime | time) -> Any:
        form: dict[str, Any] = {"$": tag, "v": value.replace(tzinfo=None, fold=0).isoformat()}
        if value.fold:
            form["f"] = 1
        return form if value.tzinfo is None else {**form, **self._zone(value.tzinfo)}

    def _zone(self, zone: tzinfo) -> dict[str, Any]:
        from zoneinfo import ZoneInfo

        if isinstance(zone, ZoneInfo):
            if is_zone_name(zone.key):
                return {"z": zone.key}
        else:
            # Not None only if the offset does not depend on the date: datetime.timezone, and
            # similar classes of pydantic and of drivers, which come back as a datetime.timezone.
            offset = zone.utcoffset(None)
            name = zone.tzname(None) if type(zone) is timezone else None
            if offset is not None and _is_text(name or ""):
                plain = timezone(offset).tzname(None)
                return {
                    "o": offset // _MICROSECOND,
                    **({} if name in (None, plain) else {"n": name}),
                }
        return self._refuse("is in a time zone without a name or a fixed offset: use zoneinfo")

    def _refuse(self, problem: str) -> NoReturn:
        where = "".join(style.format(step) for style, step in self._path)
        raise NotStorableError(f"value{where} {problem}", value=self._root)


def _dump_model(value: Any) -> tuple[Any] | None:
    """Pydantic's own JSON, for fields of types that only pydantic knows. The
    model itself must come back equal: two dumps would be equal even if a secret in them is masked."""
    if not hasattr(type(value), "model_dump_json"):
        return None
    try:
        text = value.model_dump_json(round_trip=True, by_alias=True, warnings=False)
        if type(value).model_validate_json(text) != value:
            return None
        return (msgspec.json.decode(text),)
    except Exception:  # a user's validators and serializers run in there
        return None


def _text(_: _Writer, value: str) -> Any:
    if _is_text(value):
        return value
    return {"$": "text", "v": _base64(value.encode("utf-8", "surrogatepass"))}


def _is_text(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _base64(data: bytes | bytearray) -> str:
    return binascii.b2a_base64(data, newline=False).decode("ascii")


def _int(_: _Writer, value: int) -> Any:
    return value if -(1 << 63) <= value < 1 << 64 else {"$": "int", "v": f"{value:x}"}


def _float(_: _Writer, value: float) -> Any:
    return value if isfinite(value) else {"$": "float", "v": str(value)}


def _uuid(_: _Writer, value: UUID) -> Any:
    return {"$": "uuid", "v": value.hex}


def _set(tag: str) -> Callable[[_Writer, Any], Any]:
    def write(writer: _Writer, value: Any) -> Any:
        forms = writer.within(value, lambda: writer.items(value))
        return {"$": tag, "v": sorted(forms, key=msgspec.json.encode)}  # no hash order

    return write


_WRITERS: Final[dict[type, Callable[[_Writer, Any], Any]]] = {
    str: _text,
    int: _int,
    float: _float,
    list: lambda w, v: w.within(v, lambda: w.items(v)),
    dict: _Writer.mapping,
    tuple: lambda w, v: {"$": "tuple", "v": w.within(v, lambda: w.items(v))},
    set: _set("set"),
    frozenset: _set("frozenset"),
    bytes: lambda _, v: {"$": "bytes", "v": _base64(v)},
    bytearray: lambda _, v: {"$": "bytearray", "v": _base64(v)},
    Decimal: lambda _, v: {"$": "decimal", "v": str(v)},
    UUID: _uuid,
    datetime: lambda w, v: w.zoned("datetime", v),
    time: lambda w, v: w.zoned("time", v),
    date: lambda _, v: {"$": "date", "v": v.isoformat()},
    timedelta: lambda _, v: {"$": "timedelta", "v": [v.days, v.seconds, v.microseconds]},
}
