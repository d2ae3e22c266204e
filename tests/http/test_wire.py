"""D15: what could be read in two ways is refused, whatever the pieces in which it comes."""

from __future__ import annotations

import time

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twicesafe._core.http.wire import Ambiguous, RequestGuard, ResponseGuard

HEAD = b"POST /charges HTTP/1.1\r\nHost: a\r\n"
GOOD = {
    "no body": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "old": b"GET / HTTP/1.0\r\n\r\n",
    "close": HEAD + b"Connection: x,\tClose\r\nContent-Length: 1\r\n\r\na",
    "not to be closed": HEAD + b"Connection: closed, x-close\r\n\r\n",
    "query": b"GET /a%20b?x=%2F&y HTTP/1.1\r\nhost: [::1]:80\r\n\r\n",
    "expectation": HEAD + b"Expect: 100-Continue\r\nContent-Length: 1\r\n\r\na",
    "asterisk": b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
    "length": HEAD + b"Content-Length: 5\r\n\r\nabcde",
    "blanks": HEAD + b"X-Odd:\t a\tb \r\nContent-Length:  5 \r\n\r\nabcde",
    "empty value": HEAD + b"X-Empty:\r\nContent-Length: 0\r\n\r\n",
    "octets": HEAD + b"X-Odd: \xe4\xff\r\n\r\n",
    "chunks": HEAD
    + b"Transfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\nA\r\n0123456789\r\n0\r\n\r\n",
    "case": HEAD + b"TRANSFER-ENCODING: Chunked\r\n\r\n0\r\n\r\n",
    "trailers": HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX-Sum: 1\r\n\r\n",
}
LAST = {"old", "close"}
"""After these a connection carries no other request."""
BAD = {
    "a fragment": b"GET /x#y HTTP/1.1\r\nHost: a\r\n\r\n",
    "length and coding": HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "coding and length": HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "two lengths": HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcde",
    "two equal lengths": HEAD + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nabcde",
    "a list of lengths": HEAD + b"Content-Length: 5, 5\r\n\r\nabcde",
    "signed length": HEAD + b"Content-Length: +5\r\n\r\nabcde",
    "negative length": HEAD + b"Content-Length: -5\r\n\r\n",
    "hex length": HEAD + b"Content-Length: 0x5\r\n\r\nabcde",
    "empty length": HEAD + b"Content-Length:\r\n\r\n",
    "length in other digits": HEAD + "Content-Length: ٥\r\n\r\n".encode(),
    "endless length": HEAD + b"Content-Length: 99999999999999999999\r\n\r\n",
    "two hosts": HEAD + b"Host: b\r\n\r\n",
    "two equal hosts": HEAD + b"Host: a\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "empty host": b"GET / HTTP/1.1\r\nHost:\r\n\r\n",
    "host with a path": b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n",
    "host with a user": b"GET / HTTP/1.1\r\nHost: u@a\r\n\r\n",
    "a coding with a tab": HEAD + b"Transfer-Encoding: chunked\t\r\n\r\n0\r\n\r\n",
    "a length with a tab": HEAD + b"Content-Length:\t1\r\n\r\na",
    "another expectation": HEAD + b"Expect: 200-ok\r\n\r\n",
    "a hidden expectation": HEAD + b"Expect: y 100-continue\r\n\r\n",
    "two expectations": HEAD + b"Expect: 100-continue\r\nExpect: 100-continue\r\n\r\n",
    "folded": HEAD + b"X-Odd: a\r\n b\r\n\r\n",
    "folded by a tab": HEAD + b"X-Odd: a\r\n\tContent-Length: 5\r\n\r\n",
    "folded first": b"GET / HTTP/1.1\r\n Host: a\r\n\r\n",
    "bare LF": HEAD + b"X-Odd: a\nContent-Length: 5\r\n\r\n",
    "bare LF at the end": b"GET / HTTP/1.1\nHost: a\n\r\n\r\n",
    "LF alone": b"GET / HTTP/1.1\nHost: a\n\n",
    "LF alone at the very end": HEAD + b"\n",
    "LF, then CRLF": b"GET / HTTP/1.1\r\nHost: a\n\r\n",
    "LF alone, absolute": b"GET http://other/ HTTP/1.1\nHost: a\n\n",
    "LF behind a chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nabcde\n0\r\n\r\n",
    "LF behind a trailer": HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX-Sum: 1\n\n",
    "LF for the last line": HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\n",
    "CR in a trailer": HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX-Sum: 1\r2\r\n\r\n",
    "CR in a size": HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\r\nabcde\r\n0\r\n\r\n",
    "CR CR LF": b"GET / HTTP/1.1\r\r\nHost: a\r\n\r\n",
    "a flood of chunks": HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 5000,
    "bare CR": HEAD + b"X-Odd: a\rContent-Length: 5\r\n\r\n",
    "NUL": HEAD + b"X-Odd: a\0b\r\n\r\n",
    "blank before the colon": HEAD + b"Content-Length : 5\r\n\r\nabcde",
    "tab before the colon": HEAD + b"Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n",
    "no colon": HEAD + b"Content-Length\r\n\r\n",
    "no name": HEAD + b": 5\r\n\r\n",
    "control in a name": HEAD + b"Transfer-\x0bEncoding: chunked\r\n\r\n",
    "another coding": HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "coding twice": HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n",
    "identity": HEAD + b"Transfer-Encoding: identity\r\n\r\n",
    "a coding in quotes": HEAD + b'Transfer-Encoding: "chunked"\r\n\r\n',
    "a coding with a parameter": HEAD + b"Transfer-Encoding: chunked;a=b\r\n\r\n",
    "coding in an old request": b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "hex size": HEAD + b"Transfer-Encoding: chunked\r\n\r\n0x5\r\nabcde\r\n0\r\n\r\n",
    "signed size": HEAD + b"Transfer-Encoding: chunked\r\n\r\n+5\r\nabcde\r\n0\r\n\r\n",
    "blank before a size": HEAD + b"Transfer-Encoding: chunked\r\n\r\n 5\r\nabcde\r\n0\r\n\r\n",
    "empty size": HEAD + b"Transfer-Encoding: chunked\r\n\r\n\r\nabcde\r\n0\r\n\r\n",
    "size with bare LF": HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\nabcde\r\n0\r\n\r\n",
    "an extension": HEAD + b"Transfer-Encoding: chunked\r\n\r\n5;a=b\r\nabcde\r\n0\r\n\r\n",
    "endless size": HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"0" * 64 + b"5\r\n",
    "a chunk too long": HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcde\r\n0\r\n\r\n",
    "length in trailers": HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 5\r\n\r\n",
    "trailers without end": HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"X-A: b\r\n" * 2000,
    "absolute": b"GET http://other/ HTTP/1.1\r\nHost: a\r\n\r\n",
    "authority": b"CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n",
    "connect with a path": b"CONNECT /a HTTP/1.1\r\nHost: a\r\n\r\n",
    "asterisk for others": b"POST * HTTP/1.1\r\nHost: a\r\n\r\n",
    "two blanks": b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
    "blank in the path": b"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n",
    "no version": b"GET /\r\nHost: a\r\n\r\n",
    "another version": b"GET / HTTP/2.0\r\nHost: a\r\n\r\n",
    "octets in the path": b"GET /\xe4 HTTP/1.1\r\nHost: a\r\n\r\n",
    "no method": b" / HTTP/1.1\r\nHost: a\r\n\r\n",
    "empty lines before": b"\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "too many fields": HEAD + b"X-A: b\r\n" * 101 + b"\r\n",
    "a head without end": HEAD + b"X-A: " + b"b" * 70_000,
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 8000,
}  # fmt: skip


ANSWER = b"HTTP/1.1 200 OK\r\n"
CHUNKS = ANSWER + b"Transfer-Encoding: chunked\r\n"
GOOD_RESPONSES: dict[str, tuple[bytes, int, bytes]] = {
    "length": (ANSWER + b"Content-Length: 2\r\n\r\nok", 200, b"ok"),
    "chunks": (CHUNKS + b"\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n", 200, b"ok"),
    "an extension": (CHUNKS + b'\r\n2;a="b"\r\nok\r\n0;c\r\n\r\n', 200, b"ok"),
    "sizes with blanks behind": (CHUNKS + b"\r\n2  \r\nok\r\n0 \r\n\r\n", 200, b"ok"),
    "long sizes": (CHUNKS + b"\r\n000000002\r\nok\r\n000\r\n\r\n", 200, b"ok"),
    "trailers": (CHUNKS + b"\r\n2\r\nok\r\n0\r\nX-Sum: 1\r\n\r\n", 200, b"ok"),
    "no length": (ANSWER + b"\r\nall\nof it", 200, b"all\nof it"),
    "old": (b"HTTP/1.0 200 OK\r\n\r\nok", 200, b"ok"),
    "old with a length": (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", 200, b"ok"),
    "old with chunks": (CHUNKS.replace(b"1.1", b"1.0") + b"\r\n2\r\nok\r\n0\r\n\r\n", 200, b"ok"),
    "equal lengths": (ANSWER + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\nok", 200, b"ok"),
    "a list of equal lengths": (ANSWER + b"Content-Length: 2, 2\r\n\r\nok", 200, b"ok"),
    "length and coding": (CHUNKS + b"Content-Length: 9\r\n\r\n2\r\nok\r\n0\r\n\r\n", 200, b"ok"),
    "no reason": (b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok", 200, b"ok"),
    "an odd reason": (b"HTTP/1.1 200 \xe4\t!\r\nContent-Length: 2\r\n\r\nok", 200, b"ok"),
    "an odd value": (ANSWER + b"X-Odd: \x01\xff\tb\r\nContent-Length: 2\r\n\r\nok", 200, b"ok"),
    "1xx before": (b"HTTP/1.1 103 Early\r\nLink: a\r\n\r\n" * 3 + ANSWER + b"Content-Length: 2\r\n\r\nok", 200, b"ok"),
    "no content": (b"HTTP/1.1 204 Empty\r\n\r\n", 204, b""),
    "no content, with a length": (b"HTTP/1.1 304 Same\r\nContent-Length: 2\r\n\r\n", 304, b""),
}  # fmt: skip
BAD_RESPONSES = {
    "LF alone": b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok",
    "LF alone at the end": ANSWER + b"Content-Length: 2\r\n\nok",
    "LF in the head": ANSWER + b"X-Odd: a\nContent-Length: 2\r\n\r\nok",
    "LF behind a 1xx": b"HTTP/1.1 100 Go\n\n" + ANSWER + b"Content-Length: 2\r\n\r\nok",
    "CR in a value": ANSWER + b"X-Odd: a\rSet-Cookie: b\r\nContent-Length: 2\r\n\r\nok",
    "NUL": ANSWER + b"X-Odd: a\0b\r\nContent-Length: 2\r\n\r\nok",
    "folded": ANSWER + b"X-Odd: a\r\n b\r\nContent-Length: 2\r\n\r\nok",
    "blank before the colon": ANSWER + b"Content-Length : 2\r\n\r\nok",
    "size with LF": CHUNKS + b"\r\n2\nok\r\n0\r\n\r\n",
    "CR in a size": CHUNKS + b"\r\n2\r\r\nok\r\n0\r\n\r\n",
    "CR in an extension": CHUNKS + b"\r\n2;a\rb\r\nok\r\n0\r\n\r\n",
    "hex size": CHUNKS + b"\r\n0x2\r\nok\r\n0\r\n\r\n",
    "LF behind a chunk": CHUNKS + b"\r\n2\r\nok\n0\r\n\r\n",
    "LF behind the last chunk": CHUNKS + b"\r\n2\r\nok\r\n0\r\n\n",
    "LF behind a trailer": CHUNKS + b"\r\n2\r\nok\r\n0\r\nX-Sum: 1\n\n",
    "length in trailers": CHUNKS + b"\r\n2\r\nok\r\n0\r\nContent-Length: 2\r\n\r\n",
    "a flood of chunks": CHUNKS + b"\r\n" + b"1\r\na\r\n" * 5000 + b"0\r\n\r\n",
    "two lengths": ANSWER + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nok",
    "a list of lengths": ANSWER + b"Content-Length: 2, 3\r\n\r\nok",
    "a length with a tab": ANSWER + b"Content-Length: 2\t\r\n\r\nok",
    "signed length": ANSWER + b"Content-Length: +2\r\n\r\nok",
    "another coding": ANSWER + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "coding twice": CHUNKS + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "another version": b"HTTP/2.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
    "another status": b"HTTP/1.1 600 OK\r\nContent-Length: 2\r\n\r\nok",
    "another protocol": b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n",
    "an empty line first": b"\r\n" + ANSWER + b"Content-Length: 2\r\n\r\nok",
    "a head without end": ANSWER + b"X-Odd: " + b"a" * 70_000,
}  # fmt: skip


def fed(guard: RequestGuard | ResponseGuard, data: bytes, size: int) -> bytes:
    """What a guard lets pass of this, in pieces of this size."""
    pieces = (data[start : start + size] for start in range(0, len(data), size))
    return b"".join([guard.feed(piece) for piece in pieces])


def without_trailers(octets: bytes) -> bytes:
    return octets.replace(b"X-Sum: 1\r\n", b"")


@pytest.mark.item("D15")
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1 << 20])
@pytest.mark.parametrize("name", GOOD)
def test_what_can_be_read_in_one_way_passes(name: str, size: int):
    guard = RequestGuard()
    for _ in range(3):  # one connection, several requests
        assert guard.rests
        assert fed(guard, GOOD[name], size) == without_trailers(GOOD[name])
        if name in LAST:
            break
    assert guard.rests
    assert guard.is_over == (name in LAST)
    others = b"".join(request for other, request in GOOD.items() if other not in LAST)
    assert fed(guard, others, size) == (b"" if guard.is_over else without_trailers(others))
    assert guard.rests


@pytest.mark.item("D15")
@pytest.mark.parametrize("size", [1, 7, 1 << 20])
@pytest.mark.parametrize("name", BAD)
def test_what_could_be_read_in_two_ways_is_refused(name: str, size: int):
    with pytest.raises(Ambiguous):
        fed(RequestGuard(), BAD[name], size)
    with pytest.raises(Ambiguous):
        fed(RequestGuard(), GOOD["chunks"] + BAD[name], size)


@pytest.mark.item("D15")
@pytest.mark.parametrize("name", GOOD)
def test_no_line_passes_before_it_is_whole(name: str):
    guard, request = RequestGuard(), GOOD[name]
    passed = b""
    for at in range(len(request)):
        passed += guard.feed(request[at : at + 1])
        head, end, _ = request[: at + 1].partition(b"\r\n\r\n")
        assert passed == b"" or passed.startswith(head + end)
        if end and b"chunked" in head.lower():
            assert passed.endswith(b"\r\n") or guard.in_body  # a size or a trailer comes whole
    assert passed == without_trailers(request)


@pytest.mark.item("D15")
@pytest.mark.parametrize("size", [1, 3, 1 << 20])
def test_a_bare_lf_is_refused_when_it_comes_and_not_at_the_end_of_the_head(size: int):
    for octets in (b"GET / HTTP/1.1\n", HEAD + b"\n", HEAD + b"X: a\rb"):
        with pytest.raises(Ambiguous, match="CR or LF alone"):
            fed(RequestGuard(), octets, size)
    for octets in (b"\n", b"\r\n", b" GET", b"\tGET", b"\x16\x03"):
        for before in (b"", GOOD["no body"]):
            with pytest.raises(Ambiguous, match="begins with a blank"):
                fed(RequestGuard(), before + octets, size)


@pytest.mark.item("D15", "D11")
def test_a_flood_of_chunks_costs_no_more_than_its_octets():
    """Each chunk once cost a copy of all that came with it: a minute for these."""
    sizes = b"11\r\n" + b"a" * 17 + b"\r\n"
    chunks = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + sizes * 60_000
    began = time.process_time()
    assert len(RequestGuard().feed(chunks)) == len(chunks)
    assert time.process_time() - began < 10


@pytest.mark.item("D15")
@pytest.mark.parametrize("size", [1, 2, 7, 1 << 20])
@pytest.mark.parametrize("name", GOOD_RESPONSES)
def test_what_an_upstream_may_say(name: str, size: int):
    octets, _, _ = GOOD_RESPONSES[name]
    guard = ResponseGuard()
    for _ in range(2):
        assert guard.rests
        guard.expect(b"POST")
        assert not guard.rests
        assert fed(guard, octets, size) == without_trailers(octets)
        if name in ("no length", "old"):
            assert not guard.rests
            break
        assert guard.rests
    assert guard.is_clean == (name not in ("length and coding", "old with chunks"))
    if guard.rests:
        assert fed(guard, ANSWER, size) == b""  # nothing was asked
        assert not guard.is_clean


@pytest.mark.item("D15")
@pytest.mark.parametrize("size", [1, 7, 1 << 20])
@pytest.mark.parametrize("name", BAD_RESPONSES)
def test_what_no_upstream_may_say(name: str, size: int):
    guard = ResponseGuard()
    guard.expect(b"POST")
    with pytest.raises(Ambiguous):
        fed(guard, BAD_RESPONSES[name], size)


@pytest.mark.item("D15")
def test_a_response_to_head_has_no_body():
    guard = ResponseGuard()
    guard.expect(b"HEAD")
    octets = ANSWER + b"Content-Length: 2\r\n\r\n"
    assert guard.feed(octets + b"ok") == octets
    assert guard.rests
    assert not guard.is_clean


@pytest.mark.item("D15")
@pytest.mark.parametrize("name", GOOD)
def test_where_a_request_is_before_its_end(name: str):
    guard, request = RequestGuard(), GOOD[name]
    end = request.index(b"\r\n\r\n") + 4
    for at in range(1, len(request)):
        guard = RequestGuard()
        guard.feed(request[:at])
        assert (guard.in_head, guard.in_body) == (at < end, at >= end)
        assert not guard.rests
    guard.feed(request[-1:])
    assert guard.rests
    assert not guard.in_body


PIECES = st.sampled_from(
    [*GOOD.values(), *(bad for bad in BAD.values() if len(bad) < 200), HEAD, b"\r\n", b"\n", b"\r", b"0\r\n\r\n", b"5\r\n", b"abcde",
     b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b" ", b"\t", b"\0", b":", b"+5"]
)  # fmt: skip


@pytest.mark.item("D15")
@given(st.lists(PIECES | st.binary(max_size=20), max_size=6))
def test_what_the_guard_lets_pass_the_parser_reads_to_the_same_end(pieces: list[bytes]):
    data = b"".join(pieces)
    guard = RequestGuard()
    try:
        guard.feed(data)
    except Ambiguous:
        return
    parser = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    if data:  # none at all would be the end of the connection
        parser.receive_data(data)
    while True:
        try:
            event = parser.next_event()
        except h11.RemoteProtocolError:
            return  # it refuses what the guard waits to see more of
        if event is h11.NEED_DATA:
            break
        if event is h11.PAUSED:
            parser.send(h11.Response(status_code=200, headers=[(b"content-length", b"0")]))
            parser.send(h11.EndOfMessage())
            if parser.our_state is not h11.DONE:
                return  # an old request: its connection ends here
            parser.start_next_cycle()
    idle = parser.their_state in (h11.IDLE, h11.DONE, h11.MUST_CLOSE)
    assert guard.rests == (idle and not parser.trailing_data[0])
