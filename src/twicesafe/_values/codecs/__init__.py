"""Codecs: how a handler's result becomes bytes, and comes back the same.

    b"j" + JSON           None, bool, int, float, str, list, dict with text keys
    b"t" + tagged JSON    everything else; `tagged` says how, `rebuild` reads it
    b"o" + origin + …     one of the two after the trace of its first run (`origin`)

`annotations` finds the classes that a replay may rebuild.

What the default codec promises:

- A replay is equal to the first result, type by type, or the result is refused with
  `NotStorableError` before the record says "done". 1 stays an int, 0, "" and [] stay themselves.
- Builtins, Decimal, UUID, dates and times need no annotation, and an annotation that they do not
  fit changes nothing. Rich objects (Enum, dataclass, attrs, pydantic, msgspec, named tuple, a
  subclass of a builtin) come back as one of the classes the handler's return annotation mentions.
  They are rebuilt once before they are stored: one that does not come back the same is refused.
- Stored bytes are data. Nothing is unpickled, imported or looked up by a stored name; malformed
  bytes raise `CorruptRecordError`, however deeply nested they are.

The policy limits a result's size (``max_result_bytes``), not the codec.
"""

from __future__ import annotations

import sys
from math import isfinite
from types import NoneType
from typing import Any, Final, Protocol, runtime_checkable

import msgspec

from ...errors import CorruptRecordError, NotStorableError, TwicesafeError
from .annotations import resolve_parameter_types, resolve_return_type
from .origin import MARK, without_origin
from .rebuild import from_tagged
from .tagged import MAX_DEPTH, to_tagged

__all__ = [
    "DEFAULT_CODEC",
    "MAX_DEPTH",
    "Codec",
    "JsonCodec",
    "resolve_parameter_types",
    "resolve_return_type",
    "unreadable",
]

_PLAIN: Final = b"j"
_TAGGED: Final = b"t"
_EXACT: Final = frozenset((str, int, bool, NoneType))
_DIGITS: Final = 4300  # msgspec reads no longer int; Python's default limit is the same

_to_json = msgspec.json.Encoder().encode
_from_json = msgspec.json.Decoder().decode


@runtime_checkable
class Codec(Protocol):
    """Results to bytes and back. ``declared`` is the handler's return annotation, or `Any`."""

    def encode(self, value: Any, declared: Any = Any) -> bytes:
        """The bytes of a value, or `NotStorableError` if `decode` could not give it back."""
        ...

    def decode(self, payload: bytes, declared: Any = Any) -> Any:
        """The value of the bytes, or `CorruptRecordError`."""
        ...


def unreadable(error: Exception) -> TwicesafeError:
    """Our error for what `decode` raised: a codec's own error must not look like the handler's."""
    if isinstance(error, TwicesafeError):
        return error
    problem = CorruptRecordError(
        f"the codec cannot read the stored result ({type(error).__name__}); the work is done and is not "
        "run again"
    )
    problem.__cause__ = error
    return problem


class JsonCodec:
    """Typed, versioned JSON: the default."""

    __slots__ = ()

    def encode(self, value: Any, declared: Any = Any) -> bytes:
        if _is_plain(value, 1):
            try:
                text = _to_json(value)
            except (ValueError, RecursionError):
                pass  # a lone surrogate or a very long int: the tagged form has both
            else:
                if len(text) <= _DIGITS or 0 < sys.get_int_max_str_digits() <= _DIGITS:
                    return _PLAIN + text
        tree, rich = to_tagged(value, declared)
        payload = _TAGGED + _to_json(tree)
        if rich:
            self._check_replay(value, declared, payload)
        return payload

    def decode(self, payload: bytes, declared: Any = Any) -> Any:
        version = payload[:1]
        try:
            if version == _PLAIN:
                return _from_json(payload[1:])
            if version == _TAGGED:
                return from_tagged(_from_json(payload[1:]), declared)
            if version == MARK and (inner := without_origin(payload))[:1] != MARK:
                return self.decode(inner, declared)
        except (ValueError, RecursionError, msgspec.MsgspecError) as error:
            raise CorruptRecordError(
                f"the stored result cannot be read ({type(error).__name__}); "
                "the work is done and is not run again"
            ) from error
        raise CorruptRecordError(
            f"the stored result has the unknown format {version!r}; it may come from a newer "
            "version of twicesafe or another codec"
        )

    def _check_replay(self, value: Any, declared: Any, payload: bytes) -> None:
        try:
            again = to_tagged(self.decode(payload, declared), declared)[0]
        except CorruptRecordError as error:
            found = str(error).partition(";")[0]  # what follows is for a class that changed since
            raise NotStorableError(
                f"the result cannot be rebuilt from its fields: {found}; return plain data, such as a dict",
                value=value,
            ) from error
        except NotStorableError as error:
            raise NotStorableError(
                f"the result cannot be rebuilt from its fields: {error}", value=value
            ) from error
        if _TAGGED + _to_json(again) != payload:
            raise NotStorableError(
                "the result would not be replayed unchanged: rebuilding it from its fields gives "
                "different fields (does its constructor change its arguments?); return plain data",
                value=value,
            )


def _is_plain(value: Any, depth: int) -> bool:
    """True if JSON round-trips this exactly. Written for speed: most results are small dicts."""
    kind = type(value)
    if kind is dict:
        for name in value:
            if type(name) is not str:
                return False
        value = value.values()
    elif kind is not list:
        return kind in _EXACT or (kind is float and isfinite(value))
    for item in value:
        kind = type(item)
        if kind is str or kind is int:
            continue
        if kind is dict or kind is list:
            if depth >= MAX_DEPTH or not _is_plain(item, depth + 1):
                return False
        elif kind is float:
            if not isfinite(item):  # JSON has no inf, no nan
                return False
        elif kind not in _EXACT:
            return False
    return True


DEFAULT_CODEC: Final[Codec] = JsonCodec()
