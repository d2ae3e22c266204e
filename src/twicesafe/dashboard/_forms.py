"""What a form of an operator must say: who and why, and the answer to record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from .._core.http.message import StoredResponse
from .._core.http.stored_response import RESPONSE_CODEC
from ..errors import NotStorableError

__all__ = ["BadFormError", "ResolvedAnswer", "Signed", "answer", "number", "signed"]

LONGEST: Final = 255
"""Characters of a name or a reason."""

LARGEST: Final = 65536
"""Characters of an answer that is typed in."""


class BadFormError(Exception):
    """The form cannot be used; its text says what to change."""


@dataclass(frozen=True, slots=True)
class Signed:
    by: str
    why: str


def signed(form: Mapping[str, str], user: str) -> Signed:
    """Who and why. A visitor whose name is known acts under that name only."""
    by = user or form.get("by", "").strip()
    why = form.get("why", "").strip()
    for text, what in ((by, "your name"), (why, "the reason")):
        if not text:
            raise BadFormError(f"Nothing was changed: {what} is missing. The audit needs both.")
        if len(text) > LONGEST:
            raise BadFormError(f"Nothing was changed: {what} has more than {LONGEST} characters.")
    return Signed(by, why)


@dataclass(frozen=True, slots=True)
class ResolvedAnswer:
    """What `resolve` records."""

    value: Any
    codec: Any
    """None: the receiver's own."""


def answer(form: Mapping[str, str]) -> ResolvedAnswer:
    text = form.get("answer", "")  # not "value": that is a filter, on the same form
    if len(text) > LARGEST:
        raise BadFormError(f"Nothing was changed: the answer has more than {LARGEST:,} characters.")
    if form.get("kind") == "response":
        return ResolvedAnswer(
            _response(form.get("status", ""), form.get("type", ""), text), RESPONSE_CODEC
        )
    try:
        return ResolvedAnswer(msgspec.json.decode(text.encode()), None)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise BadFormError(
            f'Nothing was changed: the answer is not JSON ({error}). Text needs quotes: "paid".'
        ) from error


def _response(status: str, kind: str, text: str) -> StoredResponse:
    if not 200 <= number(status) <= 599:
        raise BadFormError("Nothing was changed: the status is a number from 200 to 599.")
    lines = ((b"content-type", kind.encode("latin-1", "replace")),) if kind else ()
    made = StoredResponse(int(status), lines, text.encode("utf-8", "replace"))
    try:
        RESPONSE_CODEC.encode(made)
    except NotStorableError as error:
        raise BadFormError(f"Nothing was changed: {error}") from error
    return made


def number(text: str) -> int:
    """A number of a form; -1: it is not a number, or longer than any fence (63 bits: Redis counts microseconds)."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 19 else -1
