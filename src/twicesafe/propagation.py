"""Propagation: the key of what this code calls, made from the key that it runs under.

    headers = inject({"content-type": "application/json"}, step="charge-card")
    key = extract(message.headers)

Inside a protected request or message the key is ``current_key().derive(step)``: a hash of the key
one runs under and the step's name, so a retry of the whole sends the same keys again and whoever is
called can answer from its record. Outside there is nothing to derive from, and the key is new.

Headers are a mapping (HTTP, AMQP, NATS) or a list of pairs (Kafka, gRPC metadata); names have no
case; values are text or bytes. A null is no key. What is neither is refused, also a number, which
AMQP would carry: as text it could be another sender's key.
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
from ._values.context import ActiveClaim, current_claim, current_key
from ._values.keys import MAX_KEY_BYTES, Key
from .errors import InvalidKeyError

__all__ = ["extract", "inject", "numbered", "outgoing_key"]

H = TypeVar("H", bound=MutableMapping[str, Any] | MutableSequence[Any])

Headers: TypeAlias = Mapping[str, Any] | Iterable[tuple[str | bytes, str | bytes]]

_DRAFT: Final = HttpPolicy()


def inject(headers: H, step: str, *, policy: HttpPolicy = _DRAFT) -> H:
    """Put the key of this step into the headers, and return them. A key that is there stays."""
    if _lines(headers, policy):
        return headers
    value = field_of(outgoing_key(step, policy=policy), strict=policy.strict)
    if isinstance(headers, MutableMapping):
        headers[policy.sent_as] = value
    else:
        headers.append((policy.sent_as.lower(), value))  # gRPC takes no capitals
    return headers


def extract(headers: Headers | None, *, policy: HttpPolicy = _DRAFT) -> str | None:
    """The key that the headers hold; None if there is none. A malformed one is an error."""
    lines = [] if headers is None else _lines(headers, policy)
    if not lines:
        return None
    try:
        return parse_key(lines, strict=policy.strict, most=policy.max_key)
    except BadKey as bad:
        raise InvalidKeyError(
            f"the sender's {policy.header} cannot be used: {bad}; the sender must change"
        ) from None


def outgoing_key(step: str, *, policy: HttpPolicy = _DRAFT) -> str:
    """The key of a step as it is sent: derived from the current one, or new if there is none.

    Derived keys have 69 characters. Where the policy allows fewer they are sent as a UUID.
    """
    current = current_key()
    return as_sent(Key.random() if current is None else current.derive(step), policy)


def as_sent(key: Key, policy: HttpPolicy) -> str:
    """A key in a length that the policy allows."""
    if len(key.value) <= policy.max_key:
        return key.value
    number = int.from_bytes(key.id[:16], "big")
    number = number & ~(0xF << 76) & ~(0x3 << 62) | 0x8 << 76 | 0x2 << 62
    return str(UUID(int=number))


_numbers: WeakKeyDictionary[ActiveClaim, dict[str, Iterator[int]]] = WeakKeyDictionary()
_numbering = RenewedLock()


def numbered(call: str) -> str:
    """A step name for a call that has none: the call and its number under the current claim.

    ``"POST /charges #2"`` is the second such call of this run. It is stable while each run makes
    the same calls in the same order; name the steps where it may not.
    """
    claim = current_claim()
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
        f"the sender's {policy.header} cannot be used: it is of type {type(value).__name__}, and a "
        "key is text or bytes; the sender must change"
    )


def _text(name: object) -> str:
    return name.decode("latin-1") if isinstance(name, bytes) else str(name)
