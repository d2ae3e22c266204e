"""Records one response while it is sent, and says how its key ends.

    status                  ending
    2xx, 3xx                KEEP      stored, replayed
    4xx, 5xx                KEEP      unless the policy's `release` names it
    in `release`            RELEASE   not executed: a retry runs
    cut, short, never sent  UNKNOWN   held or run again, as the policy says

The body is kept up to a limit. Beyond it the client still gets all of the body, but the recording is
dropped and a repeat gets `result-not-kept`. No I/O, no time: an edge feeds it what it sends.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

from .message import StoredResponse
from .policy import HttpPolicy
from .stored_response import NOT_KEPT, NotKept, kept_fields

__all__ = ["Ending", "ResponseRecording"]


class Ending(enum.Enum):
    KEEP = "keep"
    RELEASE = "release"
    UNKNOWN = "unknown"


class ResponseRecording:
    __slots__ = (
        "_chunks",
        "_declared",
        "_fields",
        "_kept_names",
        "_policy",
        "is_event_stream",
        "overflowed",
        "redact_error",
        "size",
        "status",
    )

    def __init__(self, policy: HttpPolicy, kept_names: frozenset[bytes]) -> None:
        self._policy, self._kept_names = policy, kept_names
        self._chunks: list[bytes] = []
        self._fields: list[tuple[bytes, bytes]] = []
        self._declared: int | None = None
        self.is_event_stream = False
        """The response may never end."""
        self.overflowed = False
        """The response is larger than the limit."""
        self.size = 0
        self.status = 0
        """0: no response has begun."""
        self.redact_error: Exception | None = None
        """The exception of the policy's `redact`: nothing is kept."""

    def start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Record the head. A second head, before any body, replaces the first."""
        self.status = status
        self._fields = list(headers)
        self.is_event_stream = False
        length: bytes | None = None
        for name, value in self._fields:
            kind = name.lower()
            if kind == b"content-type":
                self.is_event_stream |= value.lower().startswith(b"text/event-stream")
            elif kind == b"content-length" and length is None:
                length = value
        self._declared = None
        if length is not None and length.isdigit() and status not in (204, 304):
            self._declared = int(length)

    def feed(self, data: bytes) -> bool:
        """Record a piece of the body. True: it reached the announced length, so it is the last."""
        self.size += len(data)
        if data and not self.overflowed:
            if self.size > self._policy.max_result_bytes:
                self.overflowed = True
                self._chunks.clear()
            else:
                self._chunks.append(bytes(data))
        return self._declared is not None and self.size == self._declared and self.size > 0

    def end(self) -> Ending:
        """The handler has ended its response."""
        if self.status < 200 or (self._declared is not None and self.size != self._declared):
            return Ending.UNKNOWN
        return Ending.RELEASE if self.status in self._policy.release else Ending.KEEP

    def result(self) -> StoredResponse | NotKept:
        """What is stored for `Ending.KEEP`."""
        if self.overflowed:
            return NOT_KEPT
        try:
            fields = kept_fields(self._fields, self._kept_names)
            body = b"" if self.status in (204, 304) else b"".join(self._chunks)
            stored = StoredResponse(self.status, fields, body)
            redact = self._policy.redact
            return stored if redact is None else redact(stored)
        except Exception as error:
            self.redact_error = error
            return NOT_KEPT
