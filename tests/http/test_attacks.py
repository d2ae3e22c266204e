"""D: what an attacker sends: large, deep, many, and made to be slow to read.

The rest of the attacks are held by the tests of the rules that they try to get around; the marks tell.
"""

from __future__ import annotations

import threading
import time

import pytest

from tests.http.stage import JSON, Answer, Play, Seen, Stage
from twicesafe._core.http.key_field import BadKey, parse_key
from twicesafe._core.http.problems import RequestRefused
from twicesafe._core.http.rules import HttpRules
from twicesafe.http import HttpPolicy, HttpRequest, JsonMember, QueryParameter

MEBIBYTE = 1 << 20
TIME_LIMIT = 40.0
"""Seconds of processor of this thread, however busy the machine is: fifty times what the slowest linear
reader here needs, and a tiny part of what a quadratic one would for a mebibyte."""


@pytest.mark.item("D5", "R5")
def test_what_belongs_to_one_client_or_one_moment_is_not_replayed(stage: Stage):
    private = [
        (b"set-cookie", b"session=1"), (b"authorization", b"Bearer x"), (b"x-csrf-token", b"t"),
        (b"x-xsrf-token", b"t"), (b"authentication-info", b"nextnonce=1"), (b"via", b"1.1 x"),
        (b"ratelimit-remaining", b"3"), (b"x-rate-limit-reset", b"9"), (b"traceparent", b"00-1"),
        (b"x-correlation-id", b"c"), (b"server-timing", b"db;dur=1"), (b"x-api-key", b"secret"),
        (b"x-access-token", b"secret"), (b"x-session-id", b"secret"), (b"csrf-token", b"secret"),
        (b"x-own", b"1"), (b"x-amz-security-token", b"secret"), (b"refresh-token", b"secret"),
    ]  # fmt: skip
    kept = [(b"location", b"/charges/1"), (b"etag", b'"e"'), (b"link", b"</a>")]
    stage.handler = lambda _: Answer(201, [JSON, *private, *kept], [b"{}"])
    first, again = (stage.send("k") for _ in range(2))
    assert again.replayed
    for name, value in private:
        assert value.decode() in first.all(name.decode()) or name == b"via"
        assert value.decode() not in again.all(name.decode())
    for name, value in kept:
        assert again[name.decode()] == value.decode()
    assert all(b"secret" not in row.result for row in stage.memory._rows.values())


@pytest.mark.item("D1", "S3")
@pytest.mark.parametrize("body", [b'{"amount":5}', b'{"amount":6}'])
def test_a_stolen_key_is_a_key_of_ones_own(stage: Stage, body: bytes):
    stage.handler = lambda seen: Answer(201, [JSON], [seen.headers["authorization"].encode()])
    stage.send("k", b'{"amount":5}', "POST", "/charges", ("Authorization", "victim"))
    stolen = stage.send("k", body, "POST", "/charges", ("Authorization", "thief"))
    assert (stolen.status, stolen.replayed, stolen.body) == (201, False, b"thief")
    assert len(stage.seen) == 2


@pytest.mark.item("D11", "K7")
def test_a_huge_key_is_refused_before_its_body_is_read(play: Play):
    rules = HttpRules(HttpPolicy())
    huge = HttpRequest("POST", "/", b"/", b"", [(b"idempotency-key", b"k" * 10 * MEBIBYTE)])
    began = time.thread_time()
    with pytest.raises(RequestRefused) as refused:
        rules.look(huge)  # `look` sees no body
    assert time.thread_time() - began < TIME_LIMIT
    assert refused.value.problem.case == "key-invalid"
    stage = play()
    with stage.connect() as connection:
        connection.sendall(stage.request("k" * 300, b"", "POST", "/c", ("Content-Length", "1000")))
        assert b" 400 " in connection.recv(1000)  # the body never came
    assert stage.seen == []


@pytest.mark.item("D11", "F9")
def test_a_huge_body_is_refused_before_it_comes(stage: Stage):
    with stage.connect() as connection:
        length = ("Content-Length", str(1 << 30))
        connection.sendall(stage.request("k", b"", "POST", "/c", length))
        assert b" 413 " in connection.recv(1000)
    assert stage.seen == []


@pytest.mark.item("D11")
def test_a_hundred_thousand_fields_are_read_once():
    rules = HttpRules(HttpPolicy(scope=("Authorization", "cookie:s")))
    lines = [(b"authorization", b"x"), (b"cookie", b"a=b"), (b"x-%d", b"")] * 100_000
    request = HttpRequest("POST", "/", b"/", b"", [*lines, (b"idempotency-key", b"k")])
    began = time.thread_time()
    looked = rules.look(request)
    assert looked is not None
    assert rules.admit(request, looked) is not None
    assert time.thread_time() - began < TIME_LIMIT


@pytest.mark.item("D11", "C2")
def test_waiters_are_bounded(play: Play):
    stage = play(wait=60, max_waiters=5)
    inside, go = threading.Event(), threading.Event()

    def slow(_: Seen) -> Answer:
        inside.set()
        assert go.wait(60)
        return Answer(body=[b"slow"])

    stage.handler = slow
    first = stage.later("k")
    assert inside.wait(60)
    others = [stage.later("k") for _ in range(30)]
    while sum(each.done() for each in others) < 25:
        assert not first.done()
    assert {each.result().problem for each in others if each.done()} == {"in-progress"}
    go.set()
    assert sum(each.result().replayed for each in others) == 5
    assert first.result().body == b"slow"
    assert len(stage.seen) == 1


def filled(*pattern: bytes) -> bytes:
    """A beginning, what is repeated up to a mebibyte, and an end."""
    begin, middle, end = pattern
    return begin + middle * (MEBIBYTE // len(middle)) + end


FIELDS = {
    "escapes": filled(b'"', b'\\"', b'"'),
    "backslashes": filled(b'"', b"\\", b""),
    "no end": filled(b'"', b"a", b""),
    "parameters": filled(b'"k"', b";a=1", b";"),
    "blanks": filled(b'"k"', b"; ", b"!"),
    "octets": filled(b'"k";a=:', b"A", b"!"),
    "displays": filled(b'"k";a=%"', b"%e2", b"!"),
    "numbers": filled(b'"k";a=', b"1", b"."),
    "tokens": filled(b'"k";a=', b"a:", b"\x7f"),
    "white space": filled(b"", b" \t", b"\x00"),
    "bare": filled(b"", b"k", b","),
}


@pytest.mark.item("D12", "K7", "K9")
@pytest.mark.parametrize("value", FIELDS.values(), ids=FIELDS)
def test_a_mebibyte_of_key_is_refused_unread_and_less_of_it_in_linear_time(value: bytes):
    began = time.thread_time()
    for octets in (value, value[:4000] + value[-1:]):
        with pytest.raises(BadKey):
            parse_key([octets], most=255)
    assert time.thread_time() - began < TIME_LIMIT


BODIES = {
    "arrays": ("application/json", filled(b"", b"[", b"")),
    "closed arrays": ("application/json", b"[" * 100_000 + b"]" * 100_000),
    "objects": ("application/json", filled(b"", b'{"a":', b"")),
    "closed objects": ("application/json", b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "a number": ("application/json", filled(b"", b"1", b"")),
    "a fraction": ("application/json", filled(b"0.", b"1", b"")),
    "an exponent": ("application/json", filled(b"1e", b"9", b"")),
    "one member twice": ("application/json", b"{" + b'"c":1,' * 150_000 + b'"c":1}'),
    "escapes": ("application/json", filled(b'"', b"\\u0000", b'"')),
    "half a string": ("application/json", filled(b'"', b"\\", b"")),
    "boundaries": ("multipart/form-data; boundary=b", filled(b"", b"\r\n--b", b"--")),
    "parts": ("multipart/form-data; boundary=b", filled(b"--b", b"\r\nA: 1\r\n\r\nx\r\n--b", b"--")),
    "half boundaries": ("multipart/form-data; boundary=" + "-" * 70, filled(b"", b"-", b"")),
    "types": ("multipart/form-data" + "; boundary=" * 90_000, b"x"),
    "a form": ("application/x-www-form-urlencoded", filled(b"", b"&a", b"")),
}  # fmt: skip


@pytest.mark.item("D12", "D21", "F6")
@pytest.mark.parametrize("kind, body", BODIES.values(), ids=BODIES)
def test_a_mebibyte_of_body_is_read_in_linear_time_and_is_no_error(kind: str, body: bytes):
    rules = HttpRules(HttpPolicy(key_from=(QueryParameter("k"), JsonMember("a.b"))))
    headers = [(b"content-type", kind.encode()), (b"idempotency-key", b"k")]
    query = filled(b"", b"%41&", b"")
    for fields in (headers, headers[:1]):  # the key in its field, or looked for in query and body
        request = HttpRequest("POST", "/" * MEBIBYTE, b"/", query, fields, body)
        began = time.thread_time()
        looked = rules.look(request)
        assert looked is not None
        admission = rules.admit(request, looked)
        assert time.thread_time() - began < TIME_LIMIT
        assert (admission is not None) is (fields is headers)


@pytest.mark.item("D21", "F6", "F7")
def test_deep_and_long_json_is_compared_all_the_same(stage: Stage):
    shapes: list[tuple[bytes, bytes]] = [
        (b"[" * 100_000 + b"]" * 100_000, b"[" * 99_999 + b"]" * 99_999),
        (b"1" * 100_000, b"1" * 99_999 + b"2"),
        (b"1e" + b"9" * 10_000, b"1e" + b"9" * 9_999),
    ]
    for number, (one, other) in enumerate(shapes):
        assert stage.send(f"k{number}", one).status == 201
        assert stage.send(f"k{number}", one).replayed
        assert stage.send(f"k{number}", other).problem == "key-reused"
    assert len(stage.seen) == len(shapes)


@pytest.mark.item("D7", "F7")
@pytest.mark.parametrize("odd", [b"NaN", b"-Infinity", b'{"a":NaN}', b"01", b"1.", b"'a'"])
def test_what_only_looks_like_json_is_compared_by_its_octets(stage: Stage, odd: bytes):
    assert stage.send("k", odd).status == 201
    assert stage.send("k", odd).replayed
    assert stage.send("k", odd + b" ").problem == "key-reused"
