"""Refuses messages that two parsers could read differently, against request smuggling.

A proxy and the server behind it each determine where a request ends. If they disagree, a client can hide
a second request in the first. So a guard checks every byte before a parser sees it, and refuses what is
ambiguous. In requests (`RequestGuard`):

    request line   not METHOD SP /path SP HTTP/1.x; an absolute URI; a fragment; CONNECT
    lines          ended by LF or CR alone; folded; white space before the colon; NUL and controls
    Host           absent, twice, or not a host
    length         Content-Length twice, in a list, signed, or with Transfer-Encoding
    Expect         anything but 100-continue
    chunks         a coding other than "chunked", sizes like 0x5 or +5, extensions, no CRLF at the end
    size           too long a head, too many fields, tiny chunks or trailers

Refusing a response loses an answer, so `ResponseGuard` refuses only what is not plain HTTP/1.x: bad
lines, an ambiguous length, another coding, another protocol. `framing` explains why the parser sees only
what the guard has checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from .framing import CHUNKED, FRAMING, TO_THE_END, Ambiguous, MessageFollower, field
from .message import options_in

__all__ = ["Ambiguous", "RequestGuard", "ResponseGuard"]

_REQUEST_LINE: Final = re.compile(
    rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]{1,64}+) (/[\x21\x22\x24-\x7e]*+|\*) HTTP/1\.([01])"
)
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: [^\r\n]*+)?")
_HOST: Final = re.compile(rb"[A-Za-z0-9._~\-%\[\]:]{1,255}+")
_LENGTH: Final = re.compile(rb"[0-9]{1,15}+")
_ONCE: Final = FRAMING | {b"expect"}


class RequestGuard(MessageFollower):
    """Follows the requests of one client."""

    __slots__ = ("_is_last", "_most_fields", "line")

    def __init__(self, max_head: int = 65536, max_fields: int = 100) -> None:
        super().__init__(max_head)
        self._most_fields = max_fields
        self._is_last = False
        self.line = b""
        """Method and target of the last request."""

    @property
    def in_head(self) -> bool:
        """The head of a request is not complete, or has not begun."""
        return self._part == self._head

    @property
    def in_body(self) -> bool:
        return not self.in_head and not self.is_over

    @property
    def rests(self) -> bool:
        """Between two requests: no byte of the next one has arrived."""
        return (self.in_head and not self._held) or self.is_over

    @property
    def is_over(self) -> bool:
        """The last request of the connection is complete."""
        return self._part == self._over

    def _judge(self, head: bytes) -> int:
        first, *lines = head.split(b"\r\n")
        line = _REQUEST_LINE.fullmatch(first)
        if line is None or (line[2] == b"*" and line[1] != b"OPTIONS") or line[1] == b"CONNECT":
            raise Ambiguous("the request line is not `METHOD /path HTTP/1.1`")
        if len(lines) > self._most_fields:
            raise Ambiguous("there are too many fields")
        found: dict[bytes, bytes] = {}
        is_old = self._is_last = line[3] == b"0"
        for name, value in map(field, lines):
            if name in _ONCE:
                if name in found:
                    raise Ambiguous(f"{name.decode()} is sent twice")
                found[name] = value
            elif name == b"connection" and b"close" in options_in(value):
                self._is_last = True
        host, length, coding = (
            found.get(name) for name in (b"host", b"content-length", b"transfer-encoding")
        )
        if (host is None and not is_old) or (host is not None and _HOST.fullmatch(host) is None):
            raise Ambiguous("host is absent, or not a host")
        if found.get(b"expect", b"100-continue").lower() != b"100-continue":
            raise Ambiguous("expect is not `100-continue`")
        self.line = b" ".join(line.group(1, 2))
        if coding is not None:
            if length is not None or is_old or coding.lower() != b"chunked":
                raise Ambiguous("transfer-encoding is not plain `chunked`")
            return CHUNKED
        if length is None:
            return 0
        if _LENGTH.fullmatch(length) is None:
            raise Ambiguous("content-length is not a number of at most 15 digits")
        return int(length)

    def _end(self) -> None:
        self._part = self._over if self._is_last else self._head


class ResponseGuard(MessageFollower):
    """Follows the responses of one upstream: one for each request announced with `expect`."""

    __slots__ = ("_method", "is_clean")

    FORBIDDEN = re.compile(rb"[\x00\x0b\x0c]|(?<!\r)\n|\r(?=[^\n])")
    CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15}+)(?:;[^\r\n]*+)?[ \t]*+")
    MOST_SIZE_LINE = 1024

    def __init__(self, max_head: int = 65536) -> None:
        super().__init__(max_head)
        self._part = self._unasked
        self._method = b""
        self.is_clean = True
        """No byte arrived without a request, and the length of each response was unambiguous."""

    def expect(self, method: bytes) -> None:
        """A request with this method is about to be sent."""
        self._method, self._part = method, self._head

    @property
    def rests(self) -> bool:
        """No response is expected."""
        return self._part == self._unasked

    def _judge(self, head: bytes) -> int:
        first, *lines = head.split(b"\r\n")
        line = _STATUS_LINE.fullmatch(first)
        if line is None:
            raise Ambiguous("there is no status line")
        fields = [field(text) for text in lines]
        lengths = set(_values(fields, b"content-length"))
        codings = [value.lower() for value in _values(fields, b"transfer-encoding")]
        if codings not in ([], [b"chunked"]):
            raise Ambiguous("transfer-encoding is not plain `chunked`")
        if len(lengths) > 1 or not all(map(_LENGTH.fullmatch, lengths)):
            raise Ambiguous("content-length is not one number")
        status = int(line[2])
        if status == 101:
            raise Ambiguous("it changes to a protocol that was not asked for")
        if status < 200:
            return 0
        if codings and (lengths or line[1] == b"0"):
            self.is_clean = False
        if self._method == b"HEAD" or status in (204, 304):
            self._method = b""
            return 0
        self._method = b""
        if codings:
            return CHUNKED
        return int(lengths.pop()) if lengths else TO_THE_END

    def _end(self) -> None:
        self._part = self._head if self._method else self._unasked

    def _unasked(self, data: bytes, at: int) -> tuple[bytes, int]:
        """Bytes without a request: they are ignored, and the connection is not reused."""
        self.is_clean = False
        return b"", len(data)


def _values(fields: Iterable[tuple[bytes, bytes]], name: bytes) -> Iterator[bytes]:
    """The listed values of every line with this name."""
    for found, value in fields:
        if found == name:
            yield from (part.strip(b" \t") for part in value.split(b","))
