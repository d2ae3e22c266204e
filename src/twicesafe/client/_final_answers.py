"""Is this answer final, or may a retry of the same request succeed?

The first matching line decides:

| the answer                                       | then          |
|--------------------------------------------------|---------------|
| it is a replay                                   | final         |
| a problem document with `retryable`, or of a twicesafe type | as it says |
| `Stripe-Should-Retry`                            | as it says    |
| a status in `retry_on`                           | retry         |
| the in-flight status (409), and the first attempt may be running | retry |
| anything else                                    | final         |

So a 422, an unknown outcome and a handler's own 500 are final: under the same key the answer would
be the same. The first attempt may be running in three cases: on a retry, with a key that was given
or derived, or if there is a Retry-After. Otherwise the key is new and was sent only once, so a 409 is the
application's own answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from ssl import SSLCertVerificationError
from typing import Any, Final

import msgspec

from .._core.http.problems import CASES
from ._policy import RetryPolicy

__all__ = [
    "ResponseSummary",
    "Unanswered",
    "blames_certificate",
    "is_final",
    "is_replay",
    "read_ahead",
    "retry_after",
]

_PROBLEM: Final = 65536
"""Bytes of a problem document that are read under every policy."""
_ENDLESS: Final = frozenset({"text/event-stream", "application/x-ndjson", "application/jsonl"})


class ResponseSummary(msgspec.Struct, frozen=True):
    """The parts of a response that decide whether it is final."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes = b""
    """Decoded, if it was read."""
    native: Any = None
    """The library's own response."""


class Unanswered(msgspec.Struct, frozen=True):
    """No response, or an incomplete one."""

    error: Exception
    sent: bool
    """False: the request was certainly not sent, and its body was not read."""
    final: bool = False
    """A retry would fail the same way."""


def blames_certificate(error: BaseException) -> bool:
    """Whether certificate verification failed. A retry will not help; a broken TLS stream may recover."""
    seen: set[int] = set()
    todo: list[object] = [error]
    while todo:
        here = todo.pop()
        if isinstance(here, SSLCertVerificationError):
            return True
        if isinstance(here, BaseException) and id(here) not in seen:
            seen.add(id(here))
            todo += [here.__cause__, here.__context__, getattr(here, "reason", None), *here.args]
    return False


def is_replay(answer: ResponseSummary, policy: RetryPolicy) -> bool:
    marker = policy.http.replay_header
    return marker is not None and answer.headers.get(marker.lower(), "").lower() == "true"


def is_final(answer: ResponseSummary, policy: RetryPolicy, *, may_be_running: bool) -> bool:
    if is_replay(answer, policy):
        return True
    said = _said(answer)
    if said is not None:
        return not said
    if answer.status in policy.retry_on:
        return False
    if answer.status == policy.http.in_flight_status:
        return not (may_be_running or "retry-after" in answer.headers)
    return True


def read_ahead(status: int, headers: Mapping[str, str], policy: RetryPolicy) -> int:
    """How many bytes of the body to read before the answer is checked and returned.

    0 for longer bodies and for event streams: they are returned unread.
    """
    if status >= 400 and _is_problem(headers):
        return max(policy.buffer, _PROBLEM)
    length = headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length[:19]) > policy.buffer:
        return 0
    return 0 if _kind(headers) in _ENDLESS else policy.buffer


def retry_after(headers: Mapping[str, str], wall: float) -> float:
    """Seconds that the server asks us to wait; 0 if Retry-After is missing or not understood.

    A date is compared with the server's own Date if there is one, because clocks differ.
    """
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    until = _date(text)
    if until is None:
        return 0.0
    now = _date(headers.get("date", ""))
    return max(0.0, until - (wall if now is None else now))


def _date(text: str) -> float | None:
    try:
        found = parsedate_to_datetime(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _kind(headers: Mapping[str, str]) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def _is_problem(headers: Mapping[str, str]) -> bool:
    return _kind(headers) == "application/problem+json"


def _said(answer: ResponseSummary) -> bool | None:
    """Whether the answer itself says that a retry may succeed; None: it does not say."""
    if answer.status >= 400 and _is_problem(answer.headers):
        try:
            document = msgspec.json.decode(answer.body)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            document = None
        if isinstance(document, dict):
            if isinstance(document.get("retryable"), bool):
                return bool(document["retryable"])
            name = str(document.get("type", "")).replace("/", ":").replace("#", ":")
            case = CASES.get(name.rpartition(":")[2])
            if case is not None:
                return case.retryable
    hint = answer.headers.get("stripe-should-retry", "").lower()
    return {"true": True, "false": False}.get(hint)
