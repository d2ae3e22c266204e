"""Propagation: derive the key of an outgoing call from the key that the current code runs under.

    headers = inject({"content-type": "application/json"}, step="charge-card")
    key = extract(message.headers)

Inside a protected request or message the key is ``current_key().derive(step)``: a hash of the
current key and the step's name. A retry of the whole operation sends the same keys again, so the
called service can answer from its record. Outside one, the key is new.

Headers are a mapping (HTTP, AMQP, NATS) or a list of pairs (Kafka, gRPC metadata). Names are
case-insensitive; values are text or bytes. A null counts as no key. Other types are refused,
including numbers (AMQP allows them): as text, a number could equal another sender's key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, MutableSequence
from itertools import count
from typing import Any, Final, TypeAlias, TypeVar, cast
from uuid import UUID
from weakref import WeakKeyDictionary

from ._core.http.key_field import BadKey, field_of, parse_key
from ._core.http.policy import HttpPolicy
from ._forking import RenewedLock
from ._values.context import ActiveClaim, active
from ._values.keys import MAX_KEY_BYTES, Key, uuid7
from .errors import InvalidKeyError

__all__ = ["extract", "inject", "numbered", "outgoing_key"]

H = TypeVar("H", bound=MutableMapping[str, Any] | MutableSequence[Any])

Headers: TypeAlias = Mapping[str, Any] | Iterable[tuple[str | bytes, str | bytes]]

_DRAFT: Final = HttpPolicy()


def inject(headers: H, step: str, *, policy: HttpPolicy = _DRAFT) -> H:
    """Add the key of this step to the headers and return them. An existing key is kept."""
    if _lines(headers, policy):
        return headers
    value = field_of(outgoing_key(step, policy=policy), strict=policy.strict)
    if isinstance(headers, MutableMapping):
        headers[policy.sent_as] = value
    else:
        headers.append((policy.sent_as.lower(), value))  # gRPC takes no capitals
    return headers


def extract(headers: Headers | None, *, policy: HttpPolicy = _DRAFT) -> str | None:
    """The key in the headers, or None. A malformed key raises `InvalidKeyError`."""
    lines = [] if headers is None else _lines(headers, policy)
    if not lines:
        return None
    try:
        return parse_key(lines, strict=policy.strict, most=policy.max_key)
    except BadKey as bad:
        raise InvalidKeyError(
            f"the sender's {policy.header} is not valid: {bad}; the sender must correct it"
        ) from None


def outgoing_key(step: str, *, policy: HttpPolicy = _DRAFT) -> str:
    """The key to send for a step: derived from the current key, or new if there is none.

    Derived keys have 69 characters. If the policy allows fewer, they are sent as a UUID.
    """
    claim = active.get()
    return uuid7() if claim is None else as_sent(claim.key.derive(step), policy)


def as_sent(key: Key, policy: HttpPolicy) -> str:
    """The key, shortened to a UUID if the policy does not allow its length."""
    if len(key.value) <= policy.max_key:
        return key.value
    number = int.from_bytes(key.id[:16], "big")
    number = number & ~(0xF << 76) & ~(0x3 << 62) | 0x8 << 76 | 0x2 << 62
    return str(UUID(int=number))


_numbers: WeakKeyDictionary[ActiveClaim, dict[str, Iterator[int]]] = WeakKeyDictionary()
_numbering = RenewedLock()


def numbered(call: str) -> str:
    """A step name for a call without one: the call and its number under the current claim.

    ``"POST /charges #2"`` is the second such call of this run. The number is stable if every run
    makes the same calls in the same order; otherwise name the steps.
    """
    claim = active.get()
    if claim is None:
        return call
    if len(call.encode("utf-8", "replace")) > MAX_KEY_BYTES - 16:
        call = "sha256:" + hashlib.sha256(call.encode("utf-8", "replace")).hexdigest()
    with _numbering.now:
        number = next(_numbers.setdefault(claim, {}).setdefault(call, count(1)))
    return f"{call} #{number}"


def _lines(headers: Headers | MutableSequence[Any], policy: HttpPolicy) -> list[bytes]:
    names = {name.lower() for name in policy.key_fields}
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    found = [value for name, value in cast("Iterable[Any]", pairs) if _text(name).lower() in names]
    return [_line(value, policy) for value in found if value is not None]


def _line(value: object, policy: HttpPolicy) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    raise InvalidKeyError(
        f"the sender's {policy.header} is not valid: it is of type {type(value).__name__}, and a "
        "key is text or bytes; the sender must correct it"
    )


def _text(name: object) -> str:
    return name.decode("latin-1") if isinstance(name, bytes) else str(name)
