"""The origin of a result: which trace the first run belonged to, kept in front of the result.

    b"o" + one byte of length + the origin + the payload as the codec wrote it

A tracer names it (`events.Tracer.origin`). Only the default codec has this format: the bytes of
another codec are never touched.
"""

from __future__ import annotations

from typing import Final

__all__ = ["MARK", "MAX_ORIGIN", "origin_of", "with_origin", "without_origin"]

MARK: Final = b"o"
MAX_ORIGIN: Final = 64


def with_origin(origin: bytes, payload: bytes) -> bytes:
    return MARK + bytes((len(origin),)) + origin + payload if len(origin) <= MAX_ORIGIN else payload


def origin_of(payload: bytes | None) -> bytes:
    """Empty: the result has none."""
    if payload is None or payload[:1] != MARK or len(payload) < 2:
        return b""
    return payload[2 : 2 + payload[1]]


def without_origin(payload: bytes) -> bytes:
    """What follows the origin; empty if it was cut off."""
    return payload[2 + payload[1] :] if len(payload) > 1 else b""
