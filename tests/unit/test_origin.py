"""The trace of a first run is kept in front of its result, and never changes the result."""

from __future__ import annotations

import pytest

from twicesafe import CorruptRecordError
from twicesafe._values.codecs import DEFAULT_CODEC
from twicesafe._values.codecs.origin import MAX_ORIGIN, origin_of, with_origin


@pytest.mark.parametrize("value", [None, 0, "", {"a": [1, 2]}, b"bytes", (1, 2)])
@pytest.mark.parametrize("origin", [b"x", bytes(25), b"o" * MAX_ORIGIN])
def test_a_result_with_an_origin_is_the_same_result(value: object, origin: bytes):
    payload = with_origin(origin, DEFAULT_CODEC.encode(value))
    assert DEFAULT_CODEC.decode(payload) == value
    assert origin_of(payload) == origin


def test_a_result_without_one_has_none():
    assert origin_of(DEFAULT_CODEC.encode({"o": 1})) == b""
    assert origin_of(None) == b""
    assert origin_of(b"") == b""


def test_an_origin_that_is_too_long_is_left_out():
    payload = DEFAULT_CODEC.encode(1)
    assert with_origin(bytes(MAX_ORIGIN + 1), payload) == payload


@pytest.mark.parametrize(
    "cut", [b"o", b"o\x05", b"o\x05abcde", b"o\x01ao\x01aj1", b"o\xff" + b"a" * 9]
)
def test_bytes_that_are_cut_are_corrupt(cut: bytes):
    with pytest.raises(CorruptRecordError):
        DEFAULT_CODEC.decode(cut)
    origin_of(cut)
