"""The wire: a request that two programs could read differently is not passed on.

A proxy and the server behind it each find out where a request ends. Where they disagree, a client can
hide a second request in the first (smuggling). So a `Guard` follows the octets of one connection,
beside the parser, and refuses at once whatever leaves a choice:

    request line   not METHOD SP /path SP HTTP/1.x; an absolute URI; CONNECT
    lines          ended by LF or CR alone; folded; white space before the colon; NUL and controls
    Host           absent, twice, or not a host
    length         Content-Length twice, in a list, signed, beside Transfer-Encoding
    chunks         a coding that is not "chunked", sizes like 0x5 or +5, extensions, no CRLF behind
    size           a head, a number of fields or trailers without end

It keeps no body and changes nothing. No I/O, no time: an edge feeds it what it is about to parse.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["Ambiguous", "Guard"]

_REQUEST_LINE: Final = re.compile(
    rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]{1,64}+) (/[\x21-\x7e]*+|\*) HTTP/1\.([01])"
)
_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]++")
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_HOST: Final = re.compile(rb"[A-Za-z0-9._~\-%\[\]:]{1,255}+")
_LENGTH: Final = re.compile(rb"[0-9]{1,15}+")
_CHUNK_SIZE: Final = re.compile(rb"[0-9A-Fa-f]{1,8}+")

_MOST_TRAILERS: Final = 8192
_SIZE_LINE: Final = 10


class Ambiguous(Exception):  # noqa: N818 - a finding about the request, not an error of the program
    """What is wrong, in words that may be told to the client."""


class Guard:
    """Follows one connection from request to request."""

    __slots__ = ("_buffer", "_left", "_most", "_most_fields", "_part", "_searched")

    def __init__(self, max_head: int = 65536, max_fields: int = 100) -> None:
        self._most, self._most_fields = max_head, max_fields
        self._buffer = bytearray()
        self._searched = 0
        self._left = 0
        self._part = self._head

    @property
    def in_head(self) -> bool:
        """A request has begun, and its head is not whole; true before the first octet, too."""
        return self._part == self._head

    @property
    def in_body(self) -> bool:
        return self._part != self._head

    @property
    def rests(self) -> bool:
        """Between two requests: nothing of the next one has come."""
        return self._part == self._head and not self._buffer

    def feed(self, data: bytes) -> None:
        """Raises `Ambiguous`; after that, the connection must end."""
        rest = data
        while rest:
            rest = self._part(rest)

    # -- each takes octets and returns those that are not its own -------------------------------

    def _head(self, data: bytes) -> bytes:
        block, rest = self._until(b"\r\n\r\n", data, self._most, "the head is too long")
        if block is not None:
            self._left, self._part = 0, self._head
            framing = _framing(block[:-4], self._most_fields)
            if framing is None:
                self._part = self._size
            elif framing:
                self._left, self._part = framing, self._fixed
        return rest

    def _fixed(self, data: bytes) -> bytes:
        taken = min(self._left, len(data))
        self._left -= taken
        if not self._left:
            self._part = self._head
        return data[taken:]

    def _size(self, data: bytes) -> bytes:
        line, rest = self._until(b"\r\n", data, _SIZE_LINE, "a chunk has no plain size")
        if line is not None:
            if _CHUNK_SIZE.fullmatch(line[:-2]) is None:
                raise Ambiguous("a chunk has no plain size")
            self._left = int(line[:-2], 16)
            self._part = self._chunk if self._left else self._trailers
        return rest

    def _chunk(self, data: bytes) -> bytes:
        taken = min(self._left, len(data))
        self._left -= taken
        if not self._left:
            self._part = self._chunk_end
        return data[taken:]

    def _chunk_end(self, data: bytes) -> bytes:
        end, rest = self._until(b"\r\n", data, 2, "a chunk is longer than its size")
        if end is not None:
            if end != b"\r\n":
                raise Ambiguous("a chunk is longer than its size")
            self._part = self._size
        return rest

    def _trailers(self, data: bytes) -> bytes:
        line, rest = self._until(b"\r\n", data, _MOST_TRAILERS, "the trailers are too long")
        if line is not None:
            if line == b"\r\n":
                self._part, self._left = self._head, 0
            else:
                self._left += len(line)
                name, _ = _field(line[:-2])
                if self._left > _MOST_TRAILERS or name in _FRAMING:
                    raise Ambiguous("the trailers are too long, or frame a message")
        return rest

    def _until(
        self, end: bytes, data: bytes, most: int, complaint: str
    ) -> tuple[bytes | None, bytes]:
        """What was gathered up to and with this end, and what follows it."""
        buffer = self._buffer
        start = max(0, self._searched - len(end) + 1)
        before = len(buffer)
        buffer += data[: most + len(end) - before]
        at = buffer.find(end, start)
        if at < 0:
            if len(buffer) >= most + len(end):
                raise Ambiguous(complaint)
            self._searched = len(buffer)
            return None, b""
        found = bytes(buffer[: at + len(end)])
        buffer.clear()
        self._searched = 0
        return found, data[len(found) - before :]


_FRAMING: Final = frozenset({b"content-length", b"transfer-encoding", b"host"})


def _field(line: bytes) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(b":")
    if not colon or _NAME.fullmatch(name) is None:
        raise Ambiguous("a line of the head is not `name: value`")
    if _CONTROL.search(value) is not None:
        raise Ambiguous("a field has a control character or a bare line end")
    return name.lower(), value.strip(b" \t")


def _framing(head: bytes, most_fields: int) -> int | None:
    """How long the body is; None: chunked."""
    first, *lines = head.split(b"\r\n")
    line = _REQUEST_LINE.fullmatch(first)
    if line is None or (line[2] == b"*" and line[1] != b"OPTIONS") or line[1] == b"CONNECT":
        raise Ambiguous("the request line is not `METHOD /path HTTP/1.1`")
    if len(lines) > most_fields:
        raise Ambiguous("there are too many fields")
    found: dict[bytes, bytes] = {}
    for text in lines:
        name, value = _field(text)
        if name in _FRAMING:
            if name in found:
                raise Ambiguous(f"{name.decode()} is there twice")
            found[name] = value
    is_old = line[3] == b"0"
    host, length, coding = (
        found.get(name) for name in (b"host", b"content-length", b"transfer-encoding")
    )
    if (host is None and not is_old) or (host is not None and _HOST.fullmatch(host) is None):
        raise Ambiguous("host is absent, or not a host")
    if coding is not None:
        if length is not None or is_old or coding.lower() != b"chunked":
            raise Ambiguous("transfer-encoding is not plain `chunked`")
        return None
    if length is None:
        return 0
    if _LENGTH.fullmatch(length) is None:
        raise Ambiguous("content-length is not a number")
    return int(length)
