"""Finds where messages on a connection begin and end, and passes on only bytes that it has checked.

Heads, chunk sizes and trailers are held back until they are complete and checked. So the parser behind
a follower never sees a line first, and cannot find another end of the message. Bodies pass as they
arrive. Trailers are dropped, because some parsers read them as fields of the next request.

Every line ends with CRLF. A CR or LF alone is refused as soon as it arrives. `wire` has the rules for
heads. No I/O, no time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

__all__ = ["CHUNKED", "FRAMING", "TO_THE_END", "Ambiguous", "MessageFollower", "field"]

CHUNKED: Final = -1
TO_THE_END: Final = -2
"""The body ends with the connection."""

_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]++")
_BARE: Final = rb"(?<!\r)\n|\r(?=[^\n])"
_MOST_TRAILERS: Final = 8192
_TINY: Final = 16
_MOST_TINY: Final = 4096
"""The most chunks shorter than `_TINY` bytes in one body: their overhead would exhaust the proxy."""
FRAMING: Final = frozenset({b"content-length", b"transfer-encoding", b"host"})


class Ambiguous(Exception):  # noqa: N818 - a finding about the message, not an error of the program
    """What is wrong, in words that the client may see."""


class MessageFollower:
    """Follows one connection from message to message."""

    __slots__ = ("_held", "_left", "_most", "_part", "_searched", "_tiny")

    FORBIDDEN: re.Pattern[bytes] = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|" + _BARE)
    """What no line may contain."""
    CHUNK_SIZE: re.Pattern[bytes] = re.compile(rb"([0-9A-Fa-f]{1,8}+)")
    MOST_SIZE_LINE = 8

    def __init__(self, max_head: int) -> None:
        self._most = max_head
        self._held = bytearray()
        self._searched = 0
        self._left = self._tiny = 0
        self._part: Callable[[bytes, int], tuple[bytes, int]] = self._head

    def feed(self, data: bytes) -> bytes:
        """The bytes that may be parsed now. After `Ambiguous` the connection must be closed, and none
        of these bytes may be parsed."""
        judged: list[bytes] = []
        at = 0
        while at < len(data):
            piece, at = self._part(data, at)
            judged.append(piece)
        return judged[0] if len(judged) == 1 else b"".join(judged)

    # -- for subclasses -----------------------------------------------------------------------

    def _judge(self, head: bytes) -> int:
        """The length of the body, `CHUNKED` or `TO_THE_END`."""
        raise NotImplementedError

    def _end(self) -> None:
        """A message is complete: set what comes next."""
        raise NotImplementedError

    # -- each takes bytes, and returns what it checked and where to continue -------------------

    def _head(self, data: bytes, at: int) -> tuple[bytes, int]:
        if not self._held and data[at] <= 0x20:
            raise Ambiguous("a message begins with a blank, an empty line or a control character")
        block, at = self._whole(b"\r\n\r\n", data, at, self._most, "the head is too long")
        if block:
            self._left = self._tiny = 0
            length = self._judge(block[:-4])
            if length == CHUNKED:
                self._part = self._size
            elif length == TO_THE_END:
                self._part = self._endless
            elif length:
                self._left, self._part = length, self._fixed
            else:
                self._end()
        return block, at

    def _fixed(self, data: bytes, at: int) -> tuple[bytes, int]:
        piece = data[at : at + self._left]
        self._left -= len(piece)
        if not self._left:
            self._end()
        return piece, at + len(piece)

    def _endless(self, data: bytes, at: int) -> tuple[bytes, int]:
        return data[at:], len(data)

    def _size(self, data: bytes, at: int) -> tuple[bytes, int]:
        line, at = self._whole(b"\r\n", data, at, self.MOST_SIZE_LINE, "a chunk has no plain size")
        if line:
            size = self.CHUNK_SIZE.fullmatch(line[:-2])
            if size is None:
                raise Ambiguous("a chunk has no plain size")
            self._left = int(size[1], 16)
            self._part = self._chunk if self._left else self._trailers
            self._tiny += self._left < _TINY
            if self._tiny > _MOST_TINY:
                raise Ambiguous("there are too many tiny chunks")
        return line, at

    def _chunk(self, data: bytes, at: int) -> tuple[bytes, int]:
        piece = data[at : at + self._left]
        self._left -= len(piece)
        if not self._left:
            self._part = self._chunk_end
        return piece, at + len(piece)

    def _chunk_end(self, data: bytes, at: int) -> tuple[bytes, int]:
        if not self._held and data[at] != 0x0D:
            raise Ambiguous("a chunk is longer than its size")
        line, at = self._whole(b"\r\n", data, at, 0, "a chunk is longer than its size")
        if line:
            self._part = self._size
        return line, at

    def _trailers(self, data: bytes, at: int) -> tuple[bytes, int]:
        line, at = self._whole(b"\r\n", data, at, _MOST_TRAILERS, "the trailers are too long")
        if line == b"\r\n":
            self._end()
            return line, at
        if line:
            self._left += len(line)
            name, _ = field(line[:-2])
            if self._left > _MOST_TRAILERS or name in FRAMING:
                raise Ambiguous("the trailers are too long, or frame a message")
        return b"", at

    def _over(self, data: bytes, _: int) -> tuple[bytes, int]:
        """After the last message: ignore the rest."""
        return b"", len(data)

    def _whole(
        self, end: bytes, data: bytes, at: int, most: int, complaint: str
    ) -> tuple[bytes, int]:
        """Everything up to and including `end`, or nothing yet; and where to continue."""
        held = self._held
        before, start = len(held), max(0, self._searched - len(end) + 1)
        held += data[at : at + most + len(end) - before]
        found = held.find(end, start)
        stop = len(held) if found < 0 else found + len(end)
        if self.FORBIDDEN.search(held, max(0, self._searched - 1), stop) is not None:
            raise Ambiguous("a line has a control character, or ends in CR or LF alone")
        if found < 0:
            if len(held) >= most + len(end):
                raise Ambiguous(complaint)
            self._searched = len(held)
            return b"", len(data)
        whole = bytes(held[:stop])
        held.clear()
        self._searched = 0
        return whole, at + stop - before


def field(line: bytes) -> tuple[bytes, bytes]:
    """Split a field line into its name in lower case and its stripped value."""
    name, colon, value = line.partition(b":")
    if not colon or _NAME.fullmatch(name) is None:
        raise Ambiguous("a line of the head is not `name: value`")
    name = name.lower()
    if name in FRAMING and b"\t" in value:  # llhttp does not take `chunked<TAB>` for `chunked`
        raise Ambiguous("a field that frames the message has a tab")
    return name, value.strip(b" \t")
