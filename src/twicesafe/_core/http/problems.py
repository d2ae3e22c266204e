"""The error responses of the layer: problem documents (RFC 9457), with one stable type per case.

By the type, a client tells a 409 or 422 of the layer from one of the application. A document never
quotes the key or a stored response.
"""

from __future__ import annotations

from typing import Final

import msgspec

from ...errors import (
    CorruptRecordError,
    FingerprintMismatchError,
    HeldError,
    ParkedError,
    ResultError,
    StillInProgressError,
    StoreError,
    TooManyWaitersError,
    TwicesafeError,
    UsageError,
)
from .message import StoredResponse
from .stored_response import expose

__all__ = ["CASES", "Problem", "ProblemKind", "RequestRefused", "problem_of", "problem_response"]


class ProblemKind(msgspec.Struct, frozen=True):
    """One kind of refusal: what a client sees, and whether the same request may succeed later."""

    status: int
    title: str
    detail: str
    retryable: bool


CASES: Final[dict[str, ProblemKind]] = {
    "key-missing": ProblemKind(
        400,
        "Idempotency-Key is missing",
        "This operation is idempotent and requires a key; send one that is new for each operation "
        "and the same for each retry.",
        False,
    ),
    "key-invalid": ProblemKind(
        400,
        "Idempotency-Key cannot be used",
        "The request was not run.",
        False,
    ),
    "key-untrusted": ProblemKind(
        403,
        "Idempotency-Key is not signed by a trusted party",
        "The request was not run.",
        False,
    ),
    "key-reused": ProblemKind(
        422,
        "Idempotency-Key is already used",
        "This key was first used for a different request. Nothing was run; use a new key for a "
        "new operation.",
        False,
    ),
    "in-progress": ProblemKind(
        409,
        "A request is outstanding for this Idempotency-Key",
        "The first request with this key is still being processed. Retry the same request later.",
        True,
    ),
    "outcome-unknown": ProblemKind(
        500,
        "The outcome of this operation is unknown",
        "The operation was started and its end was not recorded, so it may or may not have had its "
        "effect. It will not be run again under this key until an operator has decided.",
        False,
    ),
    "result-not-kept": ProblemKind(
        410,
        "The result of this operation was not kept",
        "The operation is done, but its response was not kept and cannot be repeated. It is not run "
        "again.",
        False,
    ),
    "request-too-large": ProblemKind(
        413,
        "The request is too large",
        "A request with a key must fit into memory to be compared with its repeats. It was not run.",
        False,
    ),
    "request-incomplete": ProblemKind(
        400,
        "The request is incomplete",
        "The body ended before its announced length. The request was not run; its key is unused.",
        True,
    ),
    "length-required": ProblemKind(
        411,
        "The request has no length",
        "This server does not report where a chunked body ends, so the request cannot be compared with "
        "its repeats. It was not run; send it with Content-Length.",
        False,
    ),
    "store-unavailable": ProblemKind(
        503,
        "The store of keys cannot be reached",
        "The request was not run, because a repeat could not be recognised. Retry it later.",
        True,
    ),
    "upstream-unavailable": ProblemKind(
        503,
        "The service behind this proxy cannot be reached",
        "Nothing of the request was sent to it, so nothing was run. Retry it later.",
        True,
    ),
    "upstream-failed": ProblemKind(
        502,
        "The service behind this proxy gave no complete answer",
        "The request was sent and may or may not have had its effect. With a key it could be retried "
        "safely.",
        False,
    ),
    "attempt-failed": ProblemKind(
        502,
        "The service behind this proxy gave no complete answer",
        "The request was sent and may or may not have had its effect. It is harmless to repeat: the "
        "same request may be sent again.",
        True,
    ),
    "request-malformed": ProblemKind(
        400,
        "The request is ambiguous",
        "It was not passed on, and the connection is closed.",
        False,
    ),
    "upgrade-refused": ProblemKind(
        501,
        "This proxy does not support other protocols",
        "Websockets must be routed past it.",
        False,
    ),
}


class Problem(msgspec.Struct, frozen=True):
    """One refusal: its case, and details of this request."""

    case: str
    status: int = 0
    """0: the status of the case."""
    detail: str = ""
    retry_after: int | None = None


class RequestRefused(Exception):  # noqa: N818 - an answer, not an error of the program
    """The request is refused, and nothing was run."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.case)
        self.problem = problem


_LATER: Final = 1
"""Retry-After in seconds, if nothing better is known."""


def problem_of(error: TwicesafeError) -> Problem:
    """The problem that reports an error of the receiver."""
    match error:
        case StillInProgressError():
            wait = error.retry_after or _LATER
            return Problem("in-progress", retry_after=max(1, int(-(-wait // 1))))
        case TooManyWaitersError():
            return Problem("in-progress", retry_after=_LATER)
        case FingerprintMismatchError():
            return Problem("key-reused")
        case HeldError() | ParkedError():
            return Problem("outcome-unknown")
        case CorruptRecordError():
            return Problem("result-not-kept", 500)
        case ResultError():
            return Problem("result-not-kept")
        case StoreError() | UsageError():  # nothing was claimed, so nothing has run
            return Problem("store-unavailable", retry_after=_LATER)
    return Problem("outcome-unknown")


_json = msgspec.json.Encoder().encode


def problem_response(
    problem: Problem,
    *,
    statuses: dict[str, int],
    base: str,
    documentation: str,
    exposes: bool,
) -> StoredResponse:
    """The response for a problem. `statuses` are those that a policy changed."""
    case = CASES[problem.case]
    status = problem.status or statuses.get(problem.case, case.status)
    body = _json(
        {
            "type": base + problem.case,
            "title": case.title,
            "status": status,
            "detail": f"{problem.detail} {case.detail}" if problem.detail else case.detail,
            "retryable": case.retryable,
        }
    )
    lines = [
        (b"content-type", b"application/problem+json"),
        (b"content-language", b"en"),
        (b"cache-control", b"no-store"),
        (b"content-length", str(len(body)).encode()),
    ]
    if documentation:
        lines.append((b"link", f'<{documentation}>; rel="describedby"'.encode()))
    if problem.retry_after is not None:
        lines.append((b"retry-after", str(problem.retry_after).encode()))
    if exposes:
        lines.append(expose(lines, (b"Retry-After", b"Link")))
    return StoredResponse(status, tuple(lines), body)
