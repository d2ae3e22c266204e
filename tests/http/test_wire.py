"""D15: what could be read in two ways is refused, whatever the pieces in which it comes."""

from __future__ import annotations

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twicesafe.core.http.wire import Ambiguous, Guard

HEAD = b"POST /charges HTTP/1.1\r\nHost: a\r\n"
GOOD = {
    "no body": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "old": b"GET / HTTP/1.0\r\n\r\n",
    "query": b"GET /a%20b?x=%2F&y HTTP/1.1\r\nhost: [::1]:80\r\n\r\n",
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
BAD = {
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
    "folded": HEAD + b"X-Odd: a\r\n b\r\n\r\n",
    "folded by a tab": HEAD + b"X-Odd: a\r\n\tContent-Length: 5\r\n\r\n",
    "folded first": b"GET / HTTP/1.1\r\n Host: a\r\n\r\n",
    "bare LF": HEAD + b"X-Odd: a\nContent-Length: 5\r\n\r\n",
    "bare LF at the end": b"GET / HTTP/1.1\nHost: a\n\r\n\r\n",
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


def fed(guard: Guard, data: bytes, size: int) -> None:
    for start in range(0, len(data), size):
        guard.feed(data[start : start + size])


@pytest.mark.item("D15")
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1 << 20])
@pytest.mark.parametrize("name", GOOD)
def test_what_can_be_read_in_one_way_passes(name: str, size: int):
    guard = Guard()
    for _ in range(3):  # one connection, several requests
        assert guard.rests
        fed(guard, GOOD[name], size)
    assert guard.rests
    fed(guard, b"".join(GOOD.values()), size)
    assert guard.rests


@pytest.mark.item("D15")
@pytest.mark.parametrize("size", [1, 7, 1 << 20])
@pytest.mark.parametrize("name", BAD)
def test_what_could_be_read_in_two_ways_is_refused(name: str, size: int):
    with pytest.raises(Ambiguous):
        fed(Guard(), BAD[name], size)
    with pytest.raises(Ambiguous):
        fed(Guard(), GOOD["chunks"] + BAD[name], size)


@pytest.mark.item("D15")
@pytest.mark.parametrize("name", GOOD)
def test_where_a_request_is_before_its_end(name: str):
    guard, request = Guard(), GOOD[name]
    end = request.index(b"\r\n\r\n") + 4
    for at in range(1, len(request)):
        guard = Guard()
        guard.feed(request[:at])
        assert (guard.in_head, guard.in_body) == (at < end, at >= end)
        assert not guard.rests


PIECES = st.sampled_from(
    [*GOOD.values(), *(bad for bad in BAD.values() if len(bad) < 200), HEAD, b"\r\n", b"\n", b"\r", b"0\r\n\r\n", b"5\r\n", b"abcde",
     b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b" ", b"\t", b"\0", b":", b"+5"]
)  # fmt: skip


@pytest.mark.item("D15")
@given(st.lists(PIECES | st.binary(max_size=20), max_size=6))
def test_what_the_guard_lets_pass_the_parser_reads_to_the_same_end(pieces: list[bytes]):
    data = b"".join(pieces)
    guard = Guard()
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
