"""The canonical form: one byte string per value, the same in every process and version.

Fingerprints and content keys hash it, so it must be injective (different values, different bytes)
and stable (no dict order, no hash seed, no `repr`, no `hash()`). It is MessagePack in its shortest
encoding. Maps with text keys are sorted by the UTF-8 bytes of the key, and types that MessagePack
lacks are extensions with our own codes, so other languages can compute it too.

What is the same, and what is not:

- ``1``, ``1.0``, ``True``, ``"1"``, ``b"1"``, ``[1]``, ``(1,)``, ``{1}``, ``None`` and a field
  that is absent all differ; so do a list and a tuple, and NFC and NFD text.
- Decimals compare by their text: ``1.0`` is not ``1.00``.
- Zoned datetimes are instants: 12:00+00:00 is 13:00+01:00. A naive one equals no zoned one. A
  ``time`` has no date, so it is not an instant: it compares by its text and its zone.
- ``0.0`` is ``-0.0``. NaN equals nothing, itself included, so it is refused.
- A set is a frozenset; bytes, bytearray and memoryview are one; a dict has no order. A subclass
  of a builtin counts as the builtin.
- An Enum member is its class's qualified name and its own name (a Flag: its number). A dataclass,
  attrs, pydantic, msgspec or named-tuple object is its class's qualified name and all its fields.
  The module does not count, so code may move.

Anything else raises `UsageError` naming the place. So do cycles and more than 64 levels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from math import isnan
from types import MappingProxyType, NoneType
from typing import Any, Final, NamedTuple, NoReturn
from uuid import UUID

from msgspec import msgpack

from ..errors import UsageError
from .object_fields import BASES, base_of, shape_of

__all__ = ["MAX_DEPTH", "Fields", "Walk", "canonical", "fields_of", "is_flat", "pack"]

MAX_DEPTH: Final = 64

# Part of scheme 1, pinned by the golden vectors: never renumber.
_BIG_INT, _BAD_TEXT, _TUPLE, _SET, _MAP, _RECORD, _ENUM = 1, 2, 3, 4, 5, 6, 7
_DECIMAL, _UUID, _DATE, _NAIVE, _INSTANT, _TIME, _TIMEDELTA = 16, 17, 18, 19, 20, 21, 22

_TEXT: Final = frozenset((str,))
_SCALARS: Final = frozenset((str, int, bool, float, bytes, NoneType))
_AS_IS: Final = frozenset((bool, bytes, NoneType))
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_REMEDY: Final = (
    "pass a function as key= or fingerprint= that returns plain data, without this part"
)

pack: Callable[[Any], bytes] = msgpack.Encoder(order="deterministic").encode


class Fields(NamedTuple):
    """The named fields of a value; ``name`` is its class, None for a dict."""

    name: str | None
    items: dict[str, Any]


def canonical(value: object) -> bytes:
    """The canonical bytes of a value; `UsageError` names the part that has none."""
    if is_flat(value):
        try:
            return pack(value)
        except (OverflowError, UnicodeEncodeError):
            pass  # an int or a text that MessagePack does not have
    return pack(Walk().form(value))


def is_flat(value: object) -> bool:
    """Is this a dict that MessagePack writes canonically as it is? (Ints and text unchecked.)"""
    if type(value) is not dict or not _TEXT.issuperset(map(type, value)):
        return False
    held = value.values()
    kinds = set(map(type, held))
    return kinds <= _SCALARS and (
        float not in kinds
        or not any(type(item) is float and (isnan(item) or item == 0.0) for item in held)
    )


def fields_of(value: object) -> Fields | None:
    """The top-level fields of a dict with text keys, dataclass, model…; None if it has none."""
    if type(value) is Fields:
        return value
    if type(value) is dict and _TEXT.issuperset(map(type, value)):
        return Fields(None, value)
    if isinstance(value, (dict, MappingProxyType)):
        pairs = dict.items(value) if isinstance(value, dict) else value.items()
        if all(isinstance(key, str) and not isinstance(key, Enum) for key, _ in pairs):
            return Fields(None, {str.__str__(key): item for key, item in pairs})
        return None
    kind: type = type(value)
    shape = None if isinstance(value, Enum) else shape_of(kind)
    return None if shape is None else Fields(kind.__qualname__, shape.read(value))


class Walk:
    """Converts one value to what `pack` writes, and tracks the path for error messages."""

    __slots__ = ("_open", "_path")

    def __init__(self) -> None:
        self._open: set[int] = set()
        self._path: list[tuple[str, object]] = []

    def form(self, value: Any) -> Any:
        kind: type = type(value)
        if kind in _AS_IS:
            return value
        write = _FORMS.get(kind)
        if write is not None:
            return write(self, value)
        if isinstance(value, Enum):
            member = value.value if isinstance(value, Flag) else value.name
            return _ext(_ENUM, [kind.__qualname__, self.form(member)])
        fields = fields_of(value)
        if fields is not None:
            return self.within(value, lambda: self.record(fields.name, self.each(fields)))
        base = base_of(kind)
        if base is not None:
            convert = BASES[base]
            # A copy has a new identity each time: register the original to detect cycles.
            return self.within(value, lambda: self.form(convert(value)))
        for base, write in _FORMS.items():
            if isinstance(value, base):
                return write(self, value)
        return self.refuse(
            f"is a {kind.__module__}.{kind.__qualname__}, which has no canonical form"
        )

    def each(self, fields: Fields) -> dict[str, Any]:
        """The form of every field, by name."""
        forms = {}
        style = "[{!r:.40}]" if fields.name is None else ".{:.40}"
        for name, item in fields.items.items():
            self._path.append((style, name))
            forms[name] = self.form(item)
            self._path.pop()
        return forms

    def record(self, name: str | None, forms: dict[str, Any]) -> Any:
        """The form of a value with these fields. Text that UTF-8 lacks cannot be a map's key."""
        if not all(key.isascii() or _is_text(key) for key in forms):
            return _ext(_MAP, [name, *sorted(pack([self.form(k), v]) for k, v in forms.items())])
        return forms if name is None else _ext(_RECORD, [name, forms])

    def refuse(self, problem: str) -> NoReturn:
        where = "".join(style.format(step) for style, step in self._path)
        raise UsageError(f"value{where} {problem}: {_REMEDY}")

    def within(self, value: object, write: Callable[[], Any]) -> Any:
        here = id(value)
        if here in self._open:
            self.refuse("contains itself")
        if len(self._open) >= MAX_DEPTH:
            del self._path[4:]
            self.refuse(f"… is nested more than {MAX_DEPTH} levels deep")
        self._open.add(here)
        try:
            form = write()
        except RecursionError:  # within our limit, but the caller's stack was nearly full
            self.refuse("is nested too deep")
        self._open.discard(here)
        return form

    def _items(self, items: Iterable[Any]) -> list[Any]:
        forms = []
        for index, item in enumerate(items):
            self._path.append(("[{}]", index))
            forms.append(self.form(item))
            self._path.pop()
        return forms

    def _text(self, value: str) -> Any:
        if value.isascii() or _is_text(value):
            return value
        return msgpack.Ext(_BAD_TEXT, value.encode("utf-8", "surrogatepass"))

    def _int(self, value: int) -> Any:
        if -(1 << 63) <= value < 1 << 64:
            return value
        size = value.bit_length() // 8 + 1
        return msgpack.Ext(_BIG_INT, value.to_bytes(size, "big", signed=True))

    def _float(self, value: float) -> float:
        if isnan(value):
            self.refuse("is NaN, which equals nothing")
        return value + 0.0  # -0.0 + 0.0 is 0.0

    def _decimal(self, value: Decimal) -> Any:
        if value.is_nan():
            self.refuse("is NaN, which equals nothing")
        # The context decides between 1E+5 and 1e+5.
        return msgpack.Ext(_DECIMAL, Decimal.__str__(value).upper().encode())

    def _dict(self, value: dict[Any, Any]) -> Any:
        fields = fields_of(value)
        if fields is not None:
            return self.within(value, lambda: self.record(None, self.each(fields)))
        return self.within(value, lambda: self._map(value))

    def _map(self, value: dict[Any, Any]) -> Any:
        pairs = []
        for key, item in value.items():
            self._path.append(("[a {} as key]", type(key).__name__))
            pairs.append(pack([self.form(key), self.form(item)]))
            self._path.pop()
        return _ext(_MAP, [None, *sorted(pairs)])

    def _set(self, value: Iterable[Any]) -> Any:
        return self.within(
            value, lambda: _ext(_SET, sorted(pack(form) for form in self._items(value)))
        )

    def _datetime(self, value: datetime) -> Any:
        if value.utcoffset() is None:
            return msgpack.Ext(_NAIVE, datetime.isoformat(value.replace(tzinfo=None)).encode())
        # Subtraction, not astimezone, which overflows at both ends of the calendar.
        return _ext(_INSTANT, _counts(datetime.__sub__(value, _EPOCH)))

    def _time(self, value: time) -> Any:
        zone: Any = None
        if value.tzinfo is not None:
            offset = value.utcoffset()
            zone = getattr(value.tzinfo, "key", None) if offset is None else _counts(offset)
            if zone is None:
                self.refuse("is a time in a zone without a name or a fixed offset")
        return _ext(_TIME, [time.isoformat(value.replace(tzinfo=None)), zone])


def _ext(code: int, content: Any) -> msgpack.Ext:
    return msgpack.Ext(code, pack(content))


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _counts(span: timedelta) -> list[int]:
    span = timedelta.__pos__(span)  # a subclass may count its days another way
    return [span.days, span.seconds, span.microseconds]


# Exact types first; a subclass is looked up in this order, so datetime comes before date.
_FORMS: Final[dict[type, Callable[[Walk, Any], Any]]] = {
    str: Walk._text,
    int: Walk._int,
    float: Walk._float,
    bytes: lambda _, value: bytes.__getitem__(value, slice(None)),
    bytearray: lambda _, value: bytes(value),
    memoryview: lambda _, value: value.tobytes(),
    list: lambda walk, value: walk.within(value, lambda: walk._items(value)),
    tuple: lambda walk, value: walk.within(value, lambda: _ext(_TUPLE, walk._items(value))),
    dict: Walk._dict,
    MappingProxyType: Walk._dict,
    set: Walk._set,
    frozenset: Walk._set,
    Fields: lambda walk, value: walk.within(
        value, lambda: walk.record(value.name, walk.each(value))
    ),
    Decimal: Walk._decimal,
    UUID: lambda _, value: msgpack.Ext(_UUID, value.bytes),
    datetime: Walk._datetime,
    date: lambda _, value: msgpack.Ext(_DATE, date.isoformat(value).encode()),
    time: Walk._time,
    timedelta: lambda _, value: _ext(_TIMEDELTA, _counts(value)),
}
