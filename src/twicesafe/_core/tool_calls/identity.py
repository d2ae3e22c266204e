"""Which operation is this call? Its key and its fingerprint, made from arguments that a model wrote.

A model writes ``10`` or ``10.0`` or ``"10"``, a letter and its accent as one character or as two, an
optional argument as null or not at all. None of these is another operation, so they are made equal
before anything is compared, with the help of the tool's JSON schema:

    a whole float is an int, and a decimal has no zeros at its end; a number, true or false in quotes is that
    where the schema says so, at any depth
    text is in the normal form NFC
    an argument, or a field of one, that is absent has the schema's default; null is the same as absent,
    unless there is a default: then a tool that gets null does something else

What is left differs: ``order-1`` is not ``ORDER-1``, and a list keeps its order.

The key is never the model's. It is what the caller's program sent with the call, or a hash of the
arguments that the rule names as identity; in a scope of tool, principal and run.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from contextlib import suppress
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, InvalidOperation
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final
from uuid import UUID

from ..._values.fingerprint import fingerprint
from ..._values.keys import MAX_KEY_BYTES, Key
from ..._values.object_fields import shape_of
from ...errors import ConfigurationError, InvalidKeyError, MissingKeyError
from .rule import ToolRule

__all__ = ["approval_key", "check_names", "key_of_call", "normalised", "print_of_call"]


_BOOLEANS = {"true": True, "false": False}
_MOST_DIGITS: Final = 400
"""Of a whole number. A decimal of a few characters can have a billion digits."""


def normalised(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments as they are compared."""
    return _normal(_as_declared(arguments, schema, schema))  # type: ignore[no-any-return]


def _as_declared(value: Any, about: Any, schema: Mapping[str, Any]) -> Any:
    """Defaults, and numbers and booleans that the model put in quotes, where the schema knows no text; at
    any depth."""
    meant = _meanings(about, schema)
    if isinstance(value, Mapping):
        known = {n: one for m in meant for n, one in _mapping(m.get("properties")).items()}
        given = {name: _as_declared(item, known.get(name), schema) for name, item in value.items()}
        missing = {
            n: one for n, one in known.items() if n not in given and isinstance(one, Mapping)
        }
        # Not what a default lacks itself: a schema that refers to itself would have no end.
        return {n: one["default"] for n, one in missing.items() if "default" in one} | given
    if isinstance(value, (list, tuple)):
        inner = next((m["items"] for m in meant if "items" in m), None)
        return [_as_declared(item, inner, schema) for item in value]
    kinds = {kind for m in meant for kind in _kinds(m.get("type")) if not _is_decimal(m)}
    if type(value) is not str or "string" in kinds:
        return value
    if "boolean" in kinds and value.lower() in _BOOLEANS:
        return _BOOLEANS[value.lower()]
    if kinds & {"integer", "number"}:
        for read in (int, Decimal, float):
            with suppress(ValueError, InvalidOperation):
                return read(value)
    return value


@lru_cache(maxsize=256)
def _accepts_numbers(pattern: str) -> bool:
    with suppress(re.error):
        return all(re.search(pattern, text) for text in ("12", "12.5", "0.50"))
    return False


def _is_decimal(about: Mapping[str, Any]) -> bool:
    """Whether this is the text of a decimal: Pydantic declares it beside the number."""
    pattern = about.get("pattern")
    return about.get("type") == "string" and isinstance(pattern, str) and _accepts_numbers(pattern)


def _meanings(about: Any, schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """A schema and what it refers to or combines. One that refers to itself is followed once."""
    found: list[Mapping[str, Any]] = []
    open_ = [about]
    while open_:
        one = open_.pop()
        if not isinstance(one, Mapping) or any(one is known for known in found):
            continue
        found.append(one)
        for name in ("anyOf", "oneOf", "allOf"):
            open_ += one[name] if isinstance(one.get(name), list) else []
        open_.append(_referred(one.get("$ref"), schema))
    return found


def _referred(reference: Any, schema: Mapping[str, Any]) -> Any:
    here: Any = schema if isinstance(reference, str) and reference.startswith("#/") else None
    for part in str(reference).split("/")[1:]:
        here = _mapping(here).get(part.replace("~1", "/").replace("~0", "~"))
    return here


def _mapping(given: Any) -> Mapping[str, Any]:
    return given if isinstance(given, Mapping) else {}


def _kinds(given: Any) -> list[Any]:
    """The types that a schema allows: it may say one, or a list of them."""
    return [one for one in (given if isinstance(given, list) else [given]) if isinstance(one, str)]


def _normal(value: Any) -> Any:
    if isinstance(value, str):
        return unicodedata.normalize("NFC", value)
    if isinstance(value, (float, Decimal)):
        return _number(value)
    if isinstance(value, Mapping):
        found = {_name(name): _normal(item) for name, item in value.items() if item is not None}
        if len(found) < sum(item is not None for item in value.values()):
            raise InvalidKeyError("two argument names are equal after Unicode normalisation (NFC)")
        return found
    if isinstance(value, (list, tuple)):
        return [_normal(item) for item in value]
    return value


def _name(value: Any) -> Any:
    """The key of a mapping. A framework may make one with tuples from the arguments."""
    return tuple(map(_name, value)) if isinstance(value, tuple) else _normal(value)


def _number(value: float | Decimal) -> int | float | Decimal:
    """One form of 1.5, 1.50 and their decimals."""
    if isinstance(value, Decimal) and value.is_finite():
        digits = value.as_tuple().digits
        if value.adjusted() < _MOST_DIGITS and value == value.to_integral_value():
            return int(value)
        near = float(value)
        if Decimal(repr(near)) == value:
            return near
        return value.normalize(Context(len(digits), Emin=MIN_EMIN, Emax=MAX_EMAX))
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _compared(value: Any) -> Any:
    """The same with the fields of models, which some frameworks make of the arguments."""
    kind: type = type(value)
    shape = shape_of(kind)
    if shape is not None:
        value = shape.read(value)
    if isinstance(value, Mapping):
        return {name: _compared(_normal(item)) for name, item in value.items() if item is not None}
    return [_compared(_normal(item)) for item in value] if isinstance(value, list) else value


def key_of_call(
    tool: str,
    rule: ToolRule,
    arguments: Mapping[str, Any],
    *,
    given: str | None,
    principal: str | None,
    run: str | None,
) -> Key:
    """The key of a call, before a receiver puts its scope in front. ``given``: the caller's own key."""
    scope = (_part("tool", tool), _part("principal", principal), _part("run", run))
    if given is not None:
        return Key(given, scope)
    if rule.identity is None:
        raise MissingKeyError(
            f"{tool} needs a key with every call, because its rule names no identity; the program "
            "that runs the agent must send one"
        )
    try:
        return Key.from_content(_compared(arguments), only=rule.identity, scope=scope)
    except MissingKeyError as error:  # for a model, which knows nothing of keys
        names = ", ".join(rule.identity)
        raise MissingKeyError(
            f"the call does not say what it is for; pass a value for {names}"
        ) from error


def _part(what: str, value: object) -> str:
    """A scope part. None, and a value that is too long for a scope, cannot equal another value."""
    if value is None:
        return f"no {what}"
    if not isinstance(value, (str, int, UUID)):  # the text of an object may be new for every call
        raise ConfigurationError(
            f"{what}= returned a value of type {type(value).__qualname__}, so the call has no key; it must return "
            "text, such as an id, or None"
        )
    part = f"{what}={value}"
    if len(part.encode(errors="surrogatepass")) > MAX_KEY_BYTES:
        return f"{what}#{sha256(str(value).encode(errors='surrogatepass')).hexdigest()}"
    return part  # the key refuses what is not valid Unicode


def approval_key(key: Key, round_: int = 0) -> Key:
    """The key of the run that waits for a person's signal. ``round_``: how often a person has refused it before."""
    part = f"approval {round_ + 1}" if round_ else "approval"
    return Key(key.value, (*key.scope, part), absolute=True)


def print_of_call(rule: ToolRule, arguments: Mapping[str, Any], *, whole: bool = False) -> bytes:
    """The fingerprint: of all arguments but the prose. ``whole``: of the prose, too."""
    return fingerprint(_compared(arguments), ignore=() if whole else rule.prose)


def check_names(tool: str, rule: ToolRule, schema: Mapping[str, Any]) -> None:
    """Refuse a rule that names arguments which the tool does not have."""
    known = schema.get("properties")
    if not isinstance(known, Mapping) or schema.get("additionalProperties") is True:
        return
    for setting in ("identity", "prose"):
        for name in getattr(rule, setting) or ():
            if name.partition(".")[0] not in known:
                raise ConfigurationError(
                    f"{setting}={name!r} is not an argument of the tool {tool!r}; use one of "
                    f"{', '.join(known)}"
                )
