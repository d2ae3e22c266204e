"""The answer that an operator records by hand: a JSON value, or an HTTP response."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from .._core.http.stored_response import RESPONSE_CODEC
from ..errors import NotStorableError
from ..http import StoredResponse
from .exits import USAGE, CommandEnded

__all__ = ["answer_of", "response_of"]


def response_of(
    status: int, headers: list[str], text: str | None, path: Path | None
) -> StoredResponse:
    if text is not None and path is not None:
        raise CommandEnded("give one body: either --body TEXT or --body-file PATH", USAGE)
    lines = []
    for line in headers:
        name, colon, value = line.partition(":")
        if not colon or not line.isascii():
            raise CommandEnded(f"--header {line!r} is not a header: write 'Name: value'", USAGE)
        lines.append((name.strip().lower().encode(), value.strip().encode()))
    data = _read_bytes(text, path) if text is not None or path is not None else b""
    made = StoredResponse(status, tuple(lines), data)
    try:
        RESPONSE_CODEC.encode(made)
    except NotStorableError as error:
        raise CommandEnded(str(error), USAGE) from error
    return made


def answer_of(text: str | None, path: Path | None) -> Any:
    if (text is None) == (path is None):
        raise CommandEnded("give one answer: either --value JSON or --value-file PATH", USAGE)
    try:
        return msgspec.json.decode(_read_bytes(text, path))
    except (msgspec.DecodeError, UnicodeError) as error:
        raise CommandEnded(
            f"the answer is not JSON ({error}); text needs quotes: '\"paid\"'", USAGE
        ) from error


def _read_bytes(text: str | None, path: Path | None) -> bytes:
    if text is not None:
        return text.encode("utf-8", "surrogateescape")  # the bytes that the shell has passed
    assert path is not None
    if str(path) == "-" and sys.stdin is None:
        raise CommandEnded("cannot read -: stdin is closed", USAGE)
    try:
        return sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except OSError as error:
        raise CommandEnded(f"cannot read {path}: {error.strerror}", USAGE) from error
