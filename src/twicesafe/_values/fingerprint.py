"""Fingerprints: is this repeat the same request? If not, which fields differ?

    scheme (1 byte) | SHA-256 of the canonical form (32) | one entry per field (8 each), sorted

A fingerprint is a plain blob: equal requests give equal bytes, so a store only compares. The
entries are there for a value with 1 to 16 named top-level fields: four bytes say which field, four
bytes of SHA-256 what it held. They let a mismatch name the fields that differ; they decide nothing,
and values cannot be read back. (As with every unkeyed hash, a reader of the store can test guesses:
use ``ignore=`` to leave out secrets that are easy to guess.)

Scheme 1 is pinned by golden vectors. A new scheme gets a new first byte. Scheme 2 stands for long
bytes that a caller passed as the fingerprint: their SHA-256, and no entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final
from zlib import crc32

from ..errors import ConfigurationError, MissingKeyError
from .canonical import Fields, Walk, canonical, fields_of, is_flat, pack

__all__ = [
    "MAX_BYTES",
    "content_digest",
    "field_names",
    "fields_that_differ",
    "fingerprint",
    "stated",
]

MAX_FIELDS: Final = 16
MAX_BYTES: Final = 255
"""The longest fingerprint that a store must keep."""

_SCHEME: Final = b"\x01"
_HASHED: Final = b"\x02"
_HEAD: Final = 1 + 32
_ENTRY: Final = 8


def fingerprint(value: object, *, ignore: Sequence[str] = (), only: Sequence[str] = ()) -> bytes:
    """The fingerprint of a request: of all its fields, or ``only`` some, or all but some.

    Names are top-level fields, or dotted paths into nested ones (``"meta.trace_id"``). A name that
    a request does not have is ignored. A value without fields is compared as a whole; so is a list,
    even if a path leads into it.
    """
    if ignore or only:
        value = _select(value, ignore, only)
    if type(value) is bytes:
        return _compose(pack(value), {})
    if is_flat(value):
        flat: dict[str, Any] = value  # type: ignore[assignment]
        try:
            return _compose(pack(flat), flat)
        except (OverflowError, UnicodeEncodeError):
            pass  # the general path below handles these
    fields = fields_of(value)
    if fields is None:
        return _compose(canonical(value), {})
    walk = Walk()
    forms = walk.within(value, lambda: walk.each(fields))
    return _compose(pack(walk.record(fields.name, forms)), forms)


def stated(content: object) -> bytes | None:
    """The fingerprint from a caller's value: None, the bytes themselves, or content to hash."""
    if content is None:
        return None
    if not isinstance(content, bytes):
        return fingerprint(content)
    return content if len(content) <= MAX_BYTES else _HASHED + sha256(content).digest()


def content_digest(value: object, *, ignore: Sequence[str] = (), only: Sequence[str] = ()) -> bytes:
    """32 bytes for a content key: the digest of a fingerprint, without its entries.

    Content with none of the fields in ``only``, or with none but those in ``ignore``, is refused:
    all such content would share one key.
    """
    content = _select(value, ignore, only) if ignore or only else value
    if only and not any(_finds(value, path) for path in only):
        raise MissingKeyError(
            f"this content has none of the fields in only=({', '.join(map(repr, only))[:80]}), so "
            "no key can be made; name fields that identify it and that every message has"
        )
    if ignore and field_names(value) and not field_names(content):
        raise MissingKeyError(
            "this content has only fields that ignore= leaves out "
            f"({', '.join(map(repr, ignore))[:80]}), so no key can be made; keep a field that "
            "identifies it"
        )
    return sha256(canonical(content)).digest()


def field_names(value: object) -> tuple[str, ...]:
    """The top-level fields of a request, for `fields_that_differ`; () if it has none."""
    fields = fields_of(value)
    return () if fields is None else tuple(fields.items)


def fields_that_differ(stored: bytes, new: bytes, names: Sequence[str]) -> tuple[str, ...]:
    """Which of the named fields differ between two fingerprints, or are in only one of them.

    () means unknown: one of the two has no entries, or is of another scheme.
    """
    before, after = _entries(stored), _entries(new)
    if not before or not after:
        return ()
    marks = ((name, _mark(name)) for name in names)
    return tuple(name for name, mark in marks if before.get(mark) != after.get(mark))


def _compose(whole: bytes, forms: dict[str, Any]) -> bytes:
    head = _SCHEME + sha256(whole).digest()
    if not 1 <= len(forms) <= MAX_FIELDS:
        return head
    entries = []
    for name, form in forms.items():
        mark = _mark(name)
        entries.append(mark + sha256(mark + pack(form)).digest()[:4])
    entries.sort()
    return head + b"".join(entries)


@lru_cache(maxsize=4096)
def _mark(name: str) -> bytes:
    # Field names are not secret, and a collision only blurs a message: a checksum is enough.
    return crc32(name.encode("utf-8", "surrogatepass")).to_bytes(4, "big")


def _entries(print_: bytes) -> dict[bytes, list[bytes]]:
    """What each field held, by the field's mark. A list, because two names may share a mark."""
    entries: dict[bytes, list[bytes]] = {}
    if print_[:1] == _SCHEME and (len(print_) - _HEAD) % _ENTRY == 0:
        for start in range(_HEAD, len(print_), _ENTRY):
            mark, held = print_[start : start + 4], print_[start + 4 : start + _ENTRY]
            entries.setdefault(mark, []).append(held)
    return entries


# -- ignore= and only= ------------------------------------------------------------------------


def _select(value: object, ignore: Sequence[str], only: Sequence[str]) -> object:
    if ignore and only:
        raise ConfigurationError("pass ignore= or only=, not both")
    _require_names("ignore", ignore)
    _require_names("only", only)
    return _without(value, ignore) if ignore else _with(value, only)


def _require_names(setting: str, names: object) -> None:
    if isinstance(names, (str, bytes)):
        raise ConfigurationError(f"{setting}= must be a sequence of names: write {setting}=(…,)")
    if not isinstance(names, Iterable) or not all(isinstance(name, str) and name for name in names):
        raise ConfigurationError(f"{setting}= must contain field names (non-empty text)")


def _without(value: object, paths: Iterable[str]) -> object:
    fields = fields_of(value)
    if fields is None:
        return value
    kept = {name: item for name, item in fields.items.items() if name not in set(paths)}
    for name, below in _nested(paths).items():
        if name in kept:
            kept[name] = _without(kept[name], below)
    return kept if fields.name is None else Fields(fields.name, kept)


def _with(value: object, paths: Iterable[str]) -> object:
    fields = fields_of(value)
    if fields is None:
        return value
    wanted = set(paths)
    nested = _nested(paths)
    kept = {}
    for name, item in fields.items.items():
        if name in wanted:
            kept[name] = item
        elif name in nested:
            kept[name] = _with(item, nested[name])
    return kept if fields.name is None else Fields(fields.name, kept)


def _finds(value: object, path: str) -> bool:
    """True if `_with` keeps anything for this path."""
    fields = fields_of(value)
    if fields is None or path in fields.items:
        return True
    name, _, rest = path.partition(".")
    return bool(rest) and name in fields.items and _finds(fields.items[name], rest)


def _nested(paths: Iterable[str]) -> dict[str, list[str]]:
    below: dict[str, list[str]] = {}
    for path in paths:
        name, dot, rest = path.partition(".")
        if dot and rest:
            below.setdefault(name, []).append(rest)
    return below
