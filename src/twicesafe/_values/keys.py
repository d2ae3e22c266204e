"""Keys, the identity of one operation, and owner tokens, the identity of one claim of it.

A key is ``(scope, value)``. The scope says who and what (tenant, operation); the value is the
sender's id. Its identity is a 32-byte SHA-256 over a length-prefixed encoding, so separators cannot
make two keys equal: ``("a", "bc")`` is not ``("ab", "c")``. Keys are opaque, case-sensitive and
never normalised, truncated or folded; a key that is too long is refused.

A receiver or an inbox puts its own scope in front of every key that it is given. The full keys that
it returns (`outcome.key`, `error.key`, `current_key()`, `record.key`) are absolute: a receiver uses
them unchanged.

    Key("tx-123")                                       the sender's own id
    Key("tx-123", scope=("acct_1", "POST /charges"))    …of one tenant and operation
    Key("tx-123", absolute=True)                        …without the scope of any receiver
    Key.from_content(order, ignore=("sent_at",))        no id: a hash of what was sent
    Key.from_message(type="order.paid", id="77", version=2, source="shop")
    Key.natural("invoice", 2026, 11)                    parts that are the identity
    Key.random()                                        new work that you start (UUIDv7)
    key.derive("charge-card")                           the same child key on every retry

An owner token says who made a claim. It has 128 bits and is created before the first send (P2). 80 random
bits make tokens unique across processes, a counter makes them unique within one. That is ten times cheaper
than random bits for each token. A forked child gets its own random part.

A claim may be made before its handler can start: `process_many` claims a whole batch at once. Then
its token begins with `AHEAD`. If its lease expires, the next claim does not count it:
most likely its handler never started. Every store keeps the token anyway, so the mark needs no column.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import time
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from uuid import UUID

from .._forking import in_child
from ..errors import InvalidKeyError, MissingKeyError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "AHEAD",
    "MAX_KEY_BYTES",
    "MAX_SCOPE_PARTS",
    "Key",
    "KeyLike",
    "as_key",
    "chance",
    "is_ahead",
    "new_owner",
    "new_owner_ahead",
    "uuid7",
]

MAX_KEY_BYTES: Final = 255
MAX_SCOPE_PARTS: Final = 8

_DOMAIN = b"twicesafe.key.1\0"
_NO_SCOPE = _DOMAIN + b"\0"
_sha256 = hashlib.sha256


def uuid7() -> str:
    """Unique, and sorted by the time it was made."""
    number = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(os.urandom(10), "big")
    number = number & ~(0xF << 76) & ~(0x3 << 62) | 0x7 << 76 | 0x2 << 62
    return str(UUID(int=number))


class _Fields:
    """What a key consists of. It can be changed until it becomes a `Key`."""

    __slots__ = ("absolute", "id", "scope", "value")

    value: str
    scope: tuple[str, ...]
    id: bytes
    """32 bytes; stores keep and compare the first 16."""
    absolute: bool


# Bypasses `__setattr__` of `Key`, in half the time of `object.__setattr__`.
_put_value, _put_scope, _put_id, _put_absolute = (
    _Fields.__dict__[name].__set__ for name in ("value", "scope", "id", "absolute")
)


class Key(_Fields):
    """One operation's identity. Immutable, hashable, equal by scope and value.

    ``absolute``: this is the full key; a receiver's scope is not put in front of it.
    """

    __slots__ = ()

    def __init__(self, value: str, scope: Iterable[str] = (), *, absolute: bool = False) -> None:
        if isinstance(scope, str):
            raise InvalidKeyError(
                f"scope must be a tuple of strings, not the string {scope[:20]!r}: write scope=(…,)"
            )
        try:
            scope = tuple(scope)
        except TypeError:
            raise InvalidKeyError(
                f"scope must be a tuple of strings, not {type(scope).__name__}: write scope=(…,)"
            ) from None
        _put_id(self, _identity(value, scope))
        _put_value(self, value if type(value) is str else str.__str__(value))
        _put_scope(self, scope)
        _put_absolute(self, absolute)

    # -- makers -------------------------------------------------------------------------------

    @classmethod
    def from_content(
        cls,
        content: object,
        *,
        scope: Iterable[str] = (),
        only: Sequence[str] = (),
        ignore: Sequence[str] = (),
    ) -> Key:
        """A key made from content: equal content, equal key. ``ignore`` fields that vary."""
        from .fingerprint import content_digest

        return cls("sha256:" + content_digest(content, only=only, ignore=ignore).hex(), scope)

    @classmethod
    def from_message(
        cls,
        *,
        type: str,  # noqa: A002 - the CloudEvents name
        id: str,  # noqa: A002
        version: int | None = None,
        source: str | None = None,
        scope: Iterable[str] = (),
    ) -> Key:
        """``type:id`` or ``type@vN:id``; the source, if any, is part of the scope."""
        if not type or not id:
            raise MissingKeyError("a message key needs a type and an id, both non-empty")
        # The type is also part of the scope, so that a colon in it causes no ambiguity. The part
        # after it says whether there is a version, so that no id can look like one.
        named = (*scope, *(() if source is None else (source,)), type)
        return cls(f"{type}:{id}" if version is None else f"{type}@v{version}:{id}", named)

    @classmethod
    def natural(cls, *parts: str | int | UUID, scope: Iterable[str] = ()) -> Key:
        """A key made from identifying parts; types matter (1 is not "1")."""
        from .canonical import canonical

        if not parts:
            raise MissingKeyError("a natural key needs at least one part")
        return cls("natural:" + hashlib.sha256(canonical(parts)).hexdigest(), scope)

    @classmethod
    def random(cls, *, scope: Iterable[str] = ()) -> Key:
        """A fresh UUIDv7: unique, and sorted by the time it was made."""
        return cls(uuid7(), scope)

    def derive(self, step: str) -> Key:
        """The key for one step of this operation: the same on every retry, different per step."""
        digest = hashlib.sha256(b"twicesafe.derive.1\0" + self.id + _prefixed(step, "step"))
        text = "step:" + digest.hexdigest()
        return as_key(text, self.scope) if self.absolute else Key(text, self.scope)

    # -- a value like any other ---------------------------------------------------------------

    @property
    def short(self) -> str:
        """Eight hex digits of the identity: what errors, logs and metrics show."""
        return self.id[:4].hex()

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Key is immutable; make a new one instead of setting {name!r}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a Key is immutable; {name!r} cannot be deleted")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"<Key {self.short}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self.value, self.scope, self.absolute)


def _identity(value: str, scope: tuple[str, ...]) -> bytes:
    if type(value) is str and value.isascii() and 0 < len(value) <= MAX_KEY_BYTES:
        text = _LENGTHS[len(value)] + value.encode()
    else:
        text = _prefixed(value, "key")
    try:
        around = _remembered(scope) if scope else _NO_SCOPE
    except TypeError:  # a part that cannot be hashed, so no text either
        around = _encoded(scope)
    return _sha256(around + text).digest()


def _rebuilt(value: str, scope: tuple[str, ...], absolute: bool) -> Key:
    return Key(value, scope, absolute=absolute)


KeyLike: TypeAlias = Key | str | int | UUID


def as_key(key: KeyLike | None, scope: tuple[str, ...] = ()) -> Key:
    """The full Key for what a caller passed: this scope, then the key's own, if it has one."""
    if isinstance(key, str):
        full: Any = _Fields()  # every delivery makes a key, and this is the fastest way
        full.id = _identity(key, scope)
        full.value = key if type(key) is str else str.__str__(key)
        full.scope = scope
        full.absolute = True
        full.__class__ = Key
        return full  # type: ignore[no-any-return]
    if isinstance(key, Key):
        return key if key.absolute else Key(key.value, (*scope, *key.scope), absolute=True)
    if isinstance(key, int) and not isinstance(key, bool):
        return Key(int.__repr__(key), scope, absolute=True)  # of an enum, its value
    if isinstance(key, UUID):
        return Key(str(key), scope, absolute=True)
    if key is None:
        raise MissingKeyError("no key was given: pass the sender's id, or Key.from_content(…)")
    raise InvalidKeyError(f"a key is text (or an int, a UUID, a Key), not {type(key).__name__}")


def _prefixed(text: str, what: str) -> bytes:
    if not isinstance(text, str):
        raise InvalidKeyError(f"a {what} must be text, not {type(text).__name__}")
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise InvalidKeyError(f"a {what} must be valid Unicode (it has a lone surrogate)") from None
    size = len(data)
    if size == 0:
        raise InvalidKeyError(f"a {what} must not be empty")
    if size > MAX_KEY_BYTES:
        raise InvalidKeyError(
            f"a {what} must be at most {MAX_KEY_BYTES} bytes of UTF-8, this one has {size}: keys are never "
            "truncated; hash a long one with Key.from_content"
        )
    return _LENGTHS[size] + data


def _encoded(scope: tuple[str, ...]) -> bytes:
    """What is hashed in front of the value: the same for every key of one scope."""
    if len(scope) > MAX_SCOPE_PARTS:
        raise InvalidKeyError(
            f"a scope has at most {MAX_SCOPE_PARTS} parts, this one has {len(scope)}"
        )
    return _DOMAIN + b"".join([_prefixed(part, "scope part") for part in scope]) + b"\0"


_remembered = functools.lru_cache(1024)(_encoded)

_LENGTHS = [bytes((n,)) for n in range(256)]


# --- owner tokens ----------------------------------------------------------------------------

AHEAD = b"ahead"
"""How the token of a claim that is made before its handler can start begins."""

_prefix = b""
_counter = itertools.count()


def _reseed() -> None:
    global _prefix, _counter
    _prefix = os.urandom(10)
    _counter = itertools.count(int.from_bytes(os.urandom(4), "big"))


def new_owner() -> bytes:
    """A new owner token; network retries of its claim use the same one."""
    return _prefix + (next(_counter) & 0xFFFFFFFFFFFF).to_bytes(6, "big")


def new_owner_ahead() -> bytes:
    """A new token for a claim that is made before its handler can start."""
    return AHEAD + new_owner()[len(AHEAD) :]


def is_ahead(owner: bytes) -> bool:
    return owner.startswith(AHEAD)


def chance(owner: bytes, turn: int) -> float:
    """A number from 0 to 1 for jitter, determined by owner and turn."""
    mixed = (int.from_bytes(owner, "big") ^ (turn * 0x9E3779B97F4A7C15)) * 0xD6E8FEB86659FD93
    return (mixed >> 32 & 0xFFFF) / 0xFFFF


_reseed()
in_child(_reseed)
