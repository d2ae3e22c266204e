"""Two readers of one text: the proxy's guards against the parsers of others, octet by octet.

A guard that lets a message pass says where it ends. Here it says what else it has read (`Witness`), and
the same octets are given to h11, which the proxy uses, and to parsers that it does not use: llhttp, as
aiohttp has it, and gunicorn's. All must find the same messages: their number, method, target or status,
field lines and body, and what of the last one is still to come. A finding is

    a message that a guard lets pass, and a parser refuses or reads otherwise
    a text that is refused in one piece and passes in several, or the other way round
    a request that leaves the proxy as two, or with another target or body than it came with
    a refusal for a reason that is not among those for which we are stricter than the parsers

`Unlike` names what the parsers are known to do differently, with the reason why it cannot do harm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import h11
from aiohttp import http_exceptions
from aiohttp._http_parser import (  # type: ignore[import-not-found]
    HttpRequestParser,
    HttpResponseParser,
)
from gunicorn.config import Config  # type: ignore[import-untyped]
from gunicorn.http import errors as gunicorn_errors  # type: ignore[import-untyped]
from gunicorn.http.parser import RequestParser  # type: ignore[import-untyped]

from twicesafe._core.http.forwarding import Forwarding
from twicesafe._core.http.framing import MessageFollower, field
from twicesafe._core.http.policy import HttpPolicy
from twicesafe._core.http.problems import RequestRefused
from twicesafe._core.http.wire import Ambiguous, RequestGuard, ResponseGuard

__all__ = ["REQUESTS", "RESPONSES", "WORDS", "requests", "responses"]


@dataclass
class Message:
    """What a reader has found: the same for all readers, or it is a finding."""

    start: tuple[bytes, ...]
    """Method and target, or the status."""
    fields: list[tuple[bytes, bytes]]
    body: bytes = b""
    whole: bool = False


class Unreadable(Exception):  # noqa: N818 - a verdict, not an error of the program
    """A parser refuses the text."""


class Unlike(Exception):  # noqa: N818 - as above
    """A parser is known to read this otherwise."""


# --- ours --------------------------------------------------------------------------------------


class _Witness(MessageFollower):
    """A guard with a memory of what it has read."""

    reading: list[Message]

    def _judge(self, head: bytes) -> int:
        length = super()._judge(head)
        first, *lines = head.split(b"\r\n")
        words = first.split(b" ")
        start = (words[1],) if first.startswith(b"HTTP/") else tuple(words[:2])
        self.reading.append(Message(start, _lowered(field(line) for line in lines)))
        return length

    def _fixed(self, data: bytes, at: int) -> tuple[bytes, int]:
        return self._seen(super()._fixed(data, at))

    def _chunk(self, data: bytes, at: int) -> tuple[bytes, int]:
        return self._seen(super()._chunk(data, at))

    def _endless(self, data: bytes, at: int) -> tuple[bytes, int]:
        return self._seen(super()._endless(data, at))

    def _seen(self, read: tuple[bytes, int]) -> tuple[bytes, int]:
        self.reading[-1].body += read[0]
        return read

    def _end(self) -> None:
        super()._end()
        if self.reading:
            self.reading[-1].whole = True


class Requests(_Witness, RequestGuard):
    def __init__(self) -> None:
        super().__init__()
        self.reading = []


class Responses(_Witness, ResponseGuard):
    def __init__(self, method: bytes) -> None:
        super().__init__()
        self.reading = []
        self.expect(method)


# --- h11 ---------------------------------------------------------------------------------------

_DONE: Final = h11.Response(status_code=200, headers=[(b"content-length", b"0")])


def _event(parser: h11.Connection, found: list[Message]) -> Any:
    """The next event that is not a piece of a body. Bodies and their ends go to the last message."""
    while True:
        try:
            event = parser.next_event()
        except h11.RemoteProtocolError as error:
            raise Unreadable(f"h11: {error}") from error
        if isinstance(event, h11.Data):
            found[-1].body += event.data
            continue
        if isinstance(event, h11.EndOfMessage):
            found[-1].whole = True
        return event


def by_h11(octets: bytes) -> list[Message]:
    parser = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    parser.receive_data(octets)
    found: list[Message] = []
    while True:
        event = _event(parser, found)
        if isinstance(event, h11.Request):
            found.append(Message((event.method, event.target), list(event.headers)))
        elif event is h11.PAUSED:
            parser.send(_DONE)
            parser.send(h11.EndOfMessage())
            if parser.their_state is not h11.DONE:
                return found
            parser.start_next_cycle()
        elif not isinstance(event, h11.EndOfMessage):
            return found


def responses_by_h11(octets: bytes, method: bytes) -> list[Message]:
    parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)
    parser.send(h11.Request(method=method, target="/", headers=[("Host", "a")]))
    parser.send(h11.EndOfMessage())
    if octets:
        parser.receive_data(octets)
    found: list[Message] = []
    while isinstance(event := _event(parser, found), h11.InformationalResponse | h11.Response):
        status = str(event.status_code).encode()
        whole = isinstance(event, h11.InformationalResponse)
        found.append(Message((status,), list(event.headers), whole=whole))
    return found


# --- llhttp ------------------------------------------------------------------------------------


class _Nothing:
    """What aiohttp's parser wants to tell its connection."""

    _reading_paused = False

    def pause_reading(self) -> None: ...
    def resume_reading(self, *_: Any, **__: Any) -> None: ...


_loop: list[asyncio.AbstractEventLoop] = []


def _a_loop() -> asyncio.AbstractEventLoop:
    if not _loop:
        _loop.append(asyncio.new_event_loop())
    return _loop[0]


_NO_LIMIT: Final = {"max_line_size": 1 << 20, "max_field_size": 1 << 20, "max_headers": 1 << 20}


def by_llhttp(octets: bytes) -> list[Message]:
    parser = HttpRequestParser(_Nothing(), _a_loop(), 1 << 24, **_NO_LIMIT)
    try:
        read, _, _ = parser.feed_data(octets)
    except http_exceptions.BadHttpMethod as error:
        raise Unlike("llhttp knows the methods of the registry only") from error
    except http_exceptions.HttpProcessingError as error:
        raise Unreadable(f"llhttp: {error}") from error
    found = []
    for head, payload in read:
        if head.upgrade:
            raise Unlike("llhttp stops at an Upgrade; the proxy passes none on")
        start = (head.method.encode(), head.path.encode("utf-8", "surrogateescape"))
        found.append(Message(start, _lowered(head.raw_headers), *_paid(payload)))
    return found


def responses_by_llhttp(octets: bytes, method: bytes) -> list[Message]:
    parser = HttpResponseParser(
        _Nothing(), _a_loop(), 1 << 24, **_NO_LIMIT,
        response_with_body=method != b"HEAD", read_until_eof=True,
        auto_decompress=False,
    )  # fmt: skip
    try:
        read, _, _ = parser.feed_data(octets)
    except http_exceptions.HttpProcessingError as error:
        raise Unreadable(f"llhttp: {error}") from error
    return [
        Message((str(head.code).encode(),), _lowered(head.raw_headers), *_paid(payload))
        for head, payload in read
    ]


def _lowered(lines: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Names, and the one value that h11 writes anew, in lower case."""
    found = [(name.lower(), value.strip(b" \t")) for name, value in lines]
    return [(n, v.lower() if n == b"transfer-encoding" else v) for n, v in found]


def _paid(payload: Any) -> tuple[bytes, bool]:
    return b"".join(getattr(payload, "_buffer", ())), payload.is_eof()


# --- gunicorn ----------------------------------------------------------------------------------

_CONFIG: Final = Config()
for _name, _value in {
    "limit_request_line": 0,
    "limit_request_field_size": 0,
    "limit_request_fields": 1000,
    "header_map": "dangerous",  # names with an underscore are read, not dropped
}.items():
    _CONFIG.set(_name, _value)


def by_gunicorn(octets: bytes) -> list[Message]:
    found: list[Message] = []
    try:
        for read in RequestParser(_CONFIG, iter([octets]), ("127.0.0.1", 1)):
            target = read.uri.encode("latin-1")
            lines = [(n.encode("latin-1"), v.encode("latin-1")) for n, v in read.headers]
            found.append(Message((read.method.encode(), target), _lowered(lines)))
            found[-1].body = read.body.read()
            found[-1].whole = True
    except (gunicorn_errors.NoMoreData, StopIteration):
        return found
    except gunicorn_errors.InvalidRequestMethod as error:
        raise Unlike("gunicorn knows no methods in lower case, nor long ones") from error
    except gunicorn_errors.ParseException as error:
        raise Unreadable(f"gunicorn: {error!r}") from error
    return found


# --- one text, all readers ---------------------------------------------------------------------

STRICTER: Final = frozenset(
    {
        "the request line is not `METHOD /path HTTP/1.1`",
        "there are too many fields",
        "host is sent twice",
        "host is absent, or not a host",
        "expect is not `100-continue`",
        "expect is sent twice",
        "a field that frames the message has a tab",
        "content-length is not a number of at most 15 digits",
        "transfer-encoding is not plain `chunked`",
        "a chunk has no plain size",
        "a line has a control character, or ends in CR or LF alone",
        "the trailers are too long, or frame a message",
    }
)
"""Why a request may be refused that h11 and llhttp read in the same way."""


def requests(octets: bytes) -> bool:
    """True: the guard lets it pass, and all read the same."""
    guard = Requests()
    try:
        judged = guard.feed(octets)
    except Ambiguous as finding:
        _refused_in_pieces(octets)
        if str(finding) not in STRICTER and _all_agree(octets):
            raise AssertionError(f"refused, but all parsers agree: {finding}") from finding
        return False
    pieces = Requests()
    assert b"".join(map(pieces.feed, _pieces(octets))) == judged, "pieces pass otherwise"
    assert pieces.reading == guard.reading, "pieces are read otherwise"
    if not judged:
        return False
    for parser in (by_h11, by_llhttp):
        _same(guard.reading, parser, judged)
    if all(message.whole for message in guard.reading):  # gunicorn takes an end for an end
        _same(guard.reading, by_gunicorn, judged)
    if not guard.is_over:
        _same(guard.reading, by_h11, octets)  # not even what is held back says anything else
    for request in guard.reading:
        if request.whole:
            _passed_on(request)
    return True


def _same(reading: list[Message], parser: Callable[[bytes], list[Message]], text: bytes) -> None:
    try:
        found = parser(text)
    except Unlike:
        return
    except Unreadable as error:
        raise AssertionError(f"the guard lets pass what cannot be read: {error}") from error
    assert found == reading, f"{parser.__name__} reads {found}, the guard {reading}"


def _refused_in_pieces(octets: bytes) -> None:
    guard = Requests()
    passed = b""
    try:
        for piece in _pieces(octets):
            passed += guard.feed(piece)
    except Ambiguous:
        found = by_h11(passed) if passed else []
        for read, ours in zip(found, guard.reading, strict=False):
            assert (read.start, read.fields) == (ours.start, ours.fields), (
                "passed, and read otherwise"
            )
            assert ours.body.startswith(read.body), "passed, and read otherwise"
        assert len(found) <= len(guard.reading), "more has passed than was judged"
        return
    raise AssertionError("refused in one piece, but not in several")


def _pieces(octets: bytes) -> Iterator[bytes]:
    """Cut at places that only depend on the octets."""
    at, number = 0, sum(octets[:64])
    while at < len(octets):
        number = (number * 1103515245 + 12345) & 0x7FFFFFFF
        size = 1 + (number >> 16) % 40
        yield octets[at : at + size]
        at += size


def _all_agree(octets: bytes) -> bool:
    try:
        return bool(found := by_h11(octets)) and found == by_llhttp(octets)
    except (Unreadable, Unlike):
        return False


FORWARDING: Final = Forwarding(HttpPolicy())


def _passed_on(request: Message) -> None:
    """What leaves for the upstream is one request, the same one."""
    method, target = request.start
    try:
        inbound = FORWARDING.inbound(request.fields, "192.0.2.1")
    except RequestRefused:
        return
    lines = FORWARDING.outbound(inbound, "192.0.2.1", "http", "1.1", b"a")
    out = h11.Connection(h11.CLIENT)
    sent = out.send(h11.Request(method=method, target=target, headers=list(lines))) or b""
    if request.body:
        sent += out.send(h11.Data(data=request.body)) or b""
    sent += out.send(h11.EndOfMessage()) or b""
    for parser in (by_llhttp, by_gunicorn):
        try:
            (found,) = parser(sent)
        except Unlike:
            continue
        assert found.whole, "what leaves the proxy is not whole"
        assert (found.start, found.body) == (request.start, request.body), "it has changed"
        hosted = sorted(_lowered(lines), key=lambda line: line[0] != b"host")  # h11 says it first
        assert found.fields == hosted, "its fields have changed"


def responses(octets: bytes) -> bool:
    """The first octet says whether HEAD was asked."""
    method, octets = (b"HEAD" if octets[:1] == b"h" else b"POST"), octets[1:]
    guard, pieces = Responses(method), Responses(method)
    try:
        judged = guard.feed(octets)
    except Ambiguous:
        try:
            for piece in _pieces(octets):
                pieces.feed(piece)
        except Ambiguous:
            return False
        raise AssertionError("refused in one piece, but not in several") from None
    assert b"".join(map(pieces.feed, _pieces(octets))) == judged, "pieces pass otherwise"
    assert pieces.reading == guard.reading, "pieces are read otherwise"
    if not judged:
        return False
    reading = [Message(m.start, _one_length(m.fields), m.body, m.whole) for m in guard.reading]
    found = responses_by_h11(judged, method)
    assert found == reading, f"h11 reads {found}, the guard {reading}"
    try:
        found = responses_by_llhttp(judged, method)
    except Unreadable:
        return True  # it refuses equal lengths, and a length beside a coding: the proxy does not
    assert found == guard.reading, f"llhttp reads {found}, the guard {guard.reading}"
    return True


def _one_length(lines: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """h11 makes one of several equal lengths."""
    kept: list[tuple[bytes, bytes]] = []
    for name, value in lines:
        if name != b"content-length":
            kept.append((name, value))
        elif name not in dict(kept):
            kept.append((name, value.split(b",")[0].strip(b" \t")))
    return kept


# --- good input to begin with ------------------------------------------------------------------

_HEAD: Final = b"POST /charges?a=1 HTTP/1.1\r\nHost: a\r\n"
_CODED: Final = _HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
_GET: Final = b"GET /b HTTP/1.1\r\nHost: a:80\r\n\r\n"
REQUESTS: Final = (
    _GET,
    b"GET / HTTP/1.0\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: [::1]\r\n\r\n",
    _HEAD + b"Content-Length: 5\r\n\r\nabcde" + _GET,
    _HEAD + b"X-Odd:\t a\tb \r\nX-Empty:\r\nContent-Length:  5 \r\n\r\nabcde",
    _CODED + b"5\r\nabcde\r\nA\r\n0123456789\r\n0\r\n\r\n" + _GET,
    _CODED + b"1\r\na\r\n0\r\nX-Sum: 1\r\n\r\n" + _GET,
    _HEAD + b"Connection: close\r\nContent-Length: 1\r\n\r\na" + _GET,
    _HEAD + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\nabc" + _GET * 2,
    _HEAD + b"X-Forwarded-For: 1.2.3.4\r\nForwarded: for=a\r\nCookie: a=b\r\nCookie: c=d\r\n\r\n",
)
_ANSWER: Final = b"pHTTP/1.1 200 OK\r\n"
RESPONSES: Final = (
    _ANSWER + b"Content-Length: 2\r\n\r\nok",
    _ANSWER + b"Transfer-Encoding: chunked\r\n\r\n1;a=b\r\no\r\n1 \r\nk\r\n0\r\nX-Sum: 1\r\n\r\n",
    _ANSWER + b"\r\nto the end",
    b"pHTTP/1.0 200\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok",
    b"pHTTP/1.1 103 Early\r\nLink: a\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    b"pHTTP/1.1 204 None\r\n\r\n",
    b"hHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n",
)
WORDS: Final = (
    b"\r\n", b"\n", b"\r", b"\r\n\r\n", b"\n\n", b"\n\r\n", b"\r\r\n", b"\r\n ", b"\n\t", b" ", b"\t", b"\0", b":",
    b"0\r\n\r\n", b"5\r\n", b"0\n\n", b"5;a=b\r\n", b"0x5", b"+5", b"abcde", b"Host: b\r\n", b"Host: a\r\n",
    b"Content-Length: 5\r\n", b"Content-Length: 0\r\n", b"Content-Length: 5, 5\r\n", b"content-length:5\n",
    b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: identity\r\n", b"transfer-encoding:\x0bchunked\r\n",
    b"Transfer-Encoding : chunked\r\n", b"Connection: close\r\n", b"Connection: keep-alive, x\r\n",
    b"Connection: upgrade\r\nUpgrade: h2c\r\n", b"Expect: 100-continue\r\n", b"http://other/", b"//other/", b"HTTP/1.0",
    b"HTTP/1.1", b"HTTP/2.0", b"CONNECT a:443", b"x" * 40, b"X_Forwarded_For: a\r\n", b"X-A: b\r\n" * 30, _GET, _HEAD, _CODED,
)  # fmt: skip
