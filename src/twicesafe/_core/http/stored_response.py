"""What is kept of a response: recorded while it is sent, encoded, and replayed.

`ResponseRecording` says how the key ends:

    status                  ending
    2xx, 3xx                          stored, replayed
    4xx, 5xx                          the same, unless the policy's `release` names it
    in `release`            RELEASE   not executed: a retry runs
    cut, short, never sent  UNKNOWN   held or run again, as the policy says

The body is kept up to a limit. Beyond it the client still gets all of the body, but the recording is
dropped and a repeat gets `result-not-kept`. No I/O, no time: an edge feeds it what it sends.

The status, the body and the fields in `KEPT` are stored, in order. Other fields may be secrets of one
client (`Set-Cookie`, `X-Api-Key`, `CSRF-Token`) or belong to one moment (rate limits, request ids), so
they are stored only if the policy's `keep_headers` names them. Fields of one transfer (Date, Server, Age,
framing, hop-by-hop fields and what Connection names) are never stored. What is not stored cannot leak.

    b"H" | version (1 byte) | MessagePack [status, [name, value, …], body]

Field lines with CR, LF or NUL are refused when a response is stored and when it is read. A row that was
tampered with is neither replayed nor run again.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ...errors import CorruptRecordError, NotStorableError, TooLargeError
from .message import Fields, StoredResponse, options_in

if TYPE_CHECKING:
    from .policy import HttpPolicy

__all__ = [
    "COOKIES",
    "KEPT",
    "NOT_KEPT",
    "OF_ONE_PASSAGE",
    "RESPONSE_CODEC",
    "Ending",
    "NotKept",
    "ResponseCodec",
    "ResponseRecording",
    "kept_names",
    "replay_fields",
]

_VERSION: Final = b"H\x01"
_BY_HAND: Final = b"j"
"""First byte of what the `resolve` command writes: plain JSON of the default codec."""

HOP_BY_HOP: Final = frozenset(
    b"connection proxy-connection keep-alive te transfer-encoding upgrade trailer proxy-authenticate "
    b"proxy-authorization proxy-authentication-info".split()
)
OF_ONE_PASSAGE: Final = HOP_BY_HOP | {b"date", b"server", b"age", b"content-length"}
KEPT: Final = frozenset(
    # what the body is
    b"content-type content-encoding content-language content-location content-disposition content-range "
    b"content-digest repr-digest digest content-md5 etag last-modified vary odata-version odata-entityid "
    # where to go next, and how
    b"location link retry-after allow accept-patch accept-post accept-ranges preference-applied "
    b"www-authenticate deprecation sunset warning "
    # how long, by whom and how it may be used
    b"cache-control expires pragma access-control-allow-origin access-control-allow-credentials "
    b"access-control-allow-methods access-control-allow-headers access-control-expose-headers "
    b"access-control-max-age timing-allow-origin strict-transport-security content-security-policy "
    b"content-security-policy-report-only x-content-type-options x-frame-options x-xss-protection "
    b"x-robots-tag referrer-policy permissions-policy cross-origin-opener-policy "
    b"cross-origin-embedder-policy cross-origin-resource-policy origin-agent-cluster".split()
)
"""Fields that are stored by default. None of them holds a secret of one client."""
COOKIES: Final = frozenset((b"set-cookie", b"set-cookie2"))

_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]++")
_BREAKS: Final = re.compile(rb"[\r\n\0]")

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[int, list[bytes], bytes]).decode


class NotKept:
    """Recorded in place of a response that is not kept: the key is done, without a result."""

    __slots__ = ()


NOT_KEPT: Final = NotKept()


def kept_names(*, cookies: bool, more: Iterable[str], without: Iterable[str]) -> frozenset[bytes]:
    """The fields that are stored: the default ones, with the changes of a policy."""
    added = {name.lower().encode() for name in more} | (COOKIES if cookies else frozenset())
    return (KEPT | added) - {name.lower().encode() for name in without} - OF_ONE_PASSAGE


# --- while it is sent ------------------------------------------------------------------------


class Ending(enum.Enum):
    """Why no response is stored."""

    RELEASE = "release"
    UNKNOWN = "unknown"


class ResponseRecording:
    __slots__ = (
        "_chunks",
        "_declared",
        "_fields",
        "_kept_names",
        "_policy",
        "has_no_body",
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
        """The fields to store."""
        self._declared: int | None = None
        self.has_no_body = False
        """The head is the whole response: the client sees its end as soon as the head is sent."""
        self.is_event_stream = False
        """The response may never end."""
        self.overflowed = False
        """The response is larger than the limit."""
        self.size = 0
        self.status = 0
        """0: no response has begun."""
        self.redact_error: Exception | None = None
        """What the policy's `redact` raised: then nothing is kept."""

    def start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Record the head. A second head, before any body, replaces the first."""
        self.status = status
        self.is_event_stream = False
        names, fields = self._kept_names, []
        length: bytes | None = None
        for written, value in headers:
            name = written.lower()
            if name in names:
                fields.append((name, value))
            if name == b"content-type":
                self.is_event_stream |= value.lower().startswith(b"text/event-stream")
            elif name == b"content-length" and length is None:
                length = value
            elif name == b"connection":  # it may stand after the fields that it names
                names -= options_in(value)
                fields = [field for field in fields if field[0] in names]
        self._fields, self._declared = fields, None
        if status in (204, 304):
            self.has_no_body = True
        else:
            if length is not None and length.isdigit():
                self._declared = int(length)
            self.has_no_body = self._declared == 0

    def feed(self, data: bytes) -> bool:
        """Record a piece of the body. True: it reached the announced length, so it is the last."""
        self.size += len(data)
        if data and not self.overflowed:
            if self.size > self._policy.max_result_bytes:
                self.overflowed = True
                self._chunks.clear()
            else:
                self._chunks.append(bytes(data))
        return self.has_no_body or self.size == self._declared

    def end(self) -> StoredResponse | NotKept | Ending:
        """The handler has ended its response: what is stored of it, or how else the key ends."""
        if self.status < 200 or (self._declared is not None and self.size != self._declared):
            return Ending.UNKNOWN
        if self.status in self._policy.release:
            return Ending.RELEASE
        if self.overflowed:
            return NOT_KEPT
        try:
            body = b"" if self.status in (204, 304) else b"".join(self._chunks)
            stored = StoredResponse(self.status, tuple(self._fields), body)
            redact = self._policy.redact
            return stored if redact is None else redact(stored)
        except Exception as error:
            self.redact_error = error
            return NOT_KEPT


# --- stored and replayed ---------------------------------------------------------------------


def replay_fields(
    response: StoredResponse, marker: bytes | None, exposed: tuple[bytes, ...]
) -> list[tuple[bytes, bytes]]:
    """The fields of a replay. `exposed`: names that scripts in a browser may read."""
    lines = list(response.headers)
    if response.status not in (204, 304):
        lines.append((b"content-length", str(len(response.body)).encode()))
    if marker is not None:
        lines.append((marker, b"true"))
    if exposed:
        lines.append(expose(lines, exposed))
    return lines


def expose(lines: Fields, names: Iterable[bytes]) -> tuple[bytes, bytes]:
    """Which of these names are present, for scripts of another origin."""
    present = {name.lower() for name, _ in lines}
    listed = [name for name in names if name.lower() in present]
    return b"access-control-expose-headers", b", ".join(listed)


class ResponseCodec:
    """Encodes a `StoredResponse` and decodes it."""

    __slots__ = ()

    def encode(self, value: Any, declared: Any = Any) -> bytes:
        if isinstance(value, NotKept):
            raise TooLargeError(
                "the response is over max_result_bytes: it was delivered, and repeats get result-not-kept"
            )
        if not isinstance(value, StoredResponse):
            raise NotStorableError(
                f"the result of a request must be a StoredResponse, not {type(value).__name__}"
            )
        problem = _problem(value.status, value.headers)
        if problem:
            raise NotStorableError(f"the response cannot be kept: {problem}")
        flat = list(chain.from_iterable(value.headers))
        return _VERSION + _encode((value.status, flat, value.body))

    def decode(self, payload: bytes, declared: Any = Any) -> StoredResponse:
        try:
            if payload[:1] == _BY_HAND:
                msgspec.json.decode(payload[1:])
                return StoredResponse(200, ((b"content-type", b"application/json"),), payload[1:])
            if payload[:2] != _VERSION:
                raise CorruptRecordError(
                    "the stored response has an unknown format; it may come from a newer version "
                    "of twicesafe or another codec; the request is not run again"
                )
            status, flat, body = _decode(payload[2:])
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise CorruptRecordError(
                "the stored response is not what was written; the request is not run again"
            ) from error
        if len(flat) % 2:
            raise CorruptRecordError("the stored response has a field without a value")
        headers = tuple(zip(flat[::2], flat[1::2]))  # noqa: B905 - equally long: see above
        problem = _problem(status, headers)
        if problem:
            raise CorruptRecordError(f"the stored response was changed: {problem}")
        return StoredResponse(status, headers, body)


def _problem(status: object, headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Why this must not be sent to a client; empty if it may."""
    if not isinstance(status, int) or isinstance(status, bool) or not 200 <= status <= 599:
        return "its status is not from 200 to 599"
    for name, value in headers:
        if type(name) is not bytes or type(value) is not bytes:
            return "a field is not bytes"
        if _BREAKS.search(value) is not None:
            return "a field value has a line break or NUL"
        if name in KEPT:
            continue
        if _NAME.fullmatch(name) is None:
            return "a field name is not a token"
        if name.lower() in OF_ONE_PASSAGE:
            return "it has a field that frames a message"
    return ""


RESPONSE_CODEC: Final = ResponseCodec()
