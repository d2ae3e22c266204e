"""F: what makes a repeat the same request, over real sockets; the forms alone are in `test_core.py`."""

from __future__ import annotations

import threading

import pytest

from tests.http.stage import Answer, Play, Reply, Stage
from twicesafe.http import HttpRequest

FORM = "application/x-www-form-urlencoded"


def multipart(boundary: str, *parts: tuple[str, str]) -> bytes:
    text = "".join(
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in parts
    )
    return f"{text}--{boundary}--\r\n".encode()


@pytest.mark.item("F1", "F2", "F4", "D7")
@pytest.mark.parametrize(
    "other",
    [
        {"body": b'{"amount":6}'},
        {"target": "/refunds"},
        {"target": "/charges?x=1"},
        {"target": "/charges/"},
        {"method": "PATCH"},
        {"kind": "text/plain"},
        {"kind": None},
        {"body": b""},
    ],
)
def test_another_request_under_a_known_key_is_refused(stage: Stage, other: dict):
    first = stage.send("k")
    reply = stage.send("k", **other)
    assert (reply.status, reply.problem) == (422, "key-reused")
    assert len(stage.seen) == 1
    again = stage.send("k")  # F3: the record is what it was
    assert again.replayed
    assert again.body == first.body


@pytest.mark.item("F3")
def test_a_mismatch_changes_nothing_on_record(stage: Stage):
    stage.send("k")
    before = list(stage.records.records())
    stage.send("k", b"other")
    assert list(stage.records.records()) == before


@pytest.mark.item("F4")
def test_keys_per_operation_are_a_setting(play: Play):
    stage = play(per_operation=True)
    for target in ("/a", "/b", "/a"):
        stage.send("k", target=target)
    assert [seen.path for seen in stage.seen] == ["/a", "/b"]
    assert stage.send("k", b"other", target="/a").problem == "key-reused"
    assert stage.send("k", method="PATCH", target="/a").status == 201


@pytest.mark.item("F2")
def test_the_status_of_a_mismatch_is_a_setting(play: Play):
    stage = play(mismatch_status=409)
    stage.send("k")
    reply = stage.send("k", b"other")
    assert (reply.status, reply.problem) == (409, "key-reused")


@pytest.mark.item("F5")
def test_the_order_of_parameters_counts_only_within_a_name(stage: Stage):
    assert stage.send("k", target="/a?b=1&t=x&t=y&a=2").status == 201
    assert stage.send("k", target="/a?a=2&t=x&b=1&t=y").replayed
    assert stage.send("k", target="/a?a=2&t=y&b=1&t=x").problem == "key-reused"
    assert len(stage.seen) == 1


@pytest.mark.item("F6")
def test_white_space_and_member_order_of_json_do_not_count(stage: Stage):
    assert stage.send("k", b'{"a":1,"b":[1,2]}').status == 201
    assert stage.send("k", b'{ "b" : [1, 2],\n "a": 1 }').replayed
    kind = "application/json; charset=utf-8"
    assert stage.send("k", b'{"b":[1,2],"a":1}', kind=kind).replayed
    assert len(stage.seen) == 1


@pytest.mark.item("F6")
@pytest.mark.parametrize(
    "bad", [b"{", b"\xff\xfe", b"[" * 100_000, b"NaN", b'"\\ud800"', b"\xef\xbb\xbf1"]
)
def test_bodies_that_do_not_parse_are_compared_as_octets(stage: Stage, bad: bytes):
    assert stage.send("k", bad).status == 201
    assert stage.send("k", bad).replayed
    assert stage.send("k", bad + b" ").problem == "key-reused"
    assert len(stage.seen) == 1


@pytest.mark.item("F7", "D7")
@pytest.mark.parametrize(
    "one, other",
    [
        (b"9007199254740993", b"9007199254740992"),
        (b"0.1000000000000000055", b"0.1"),
        (b"1", b'"1"'),
        (b"1", b"true"),
        (b"1", b"1.0"),
        (b'{"a":null}', b"{}"),
        (b"[1,2]", b"[2,1]"),
        ('"\u00e9"'.encode(), '"e\u0301"'.encode()),
        (b'{"a":1,"a":2}', b'{"a":2}'),
        (b'{"a":1,"a":2}', b'{"a":2,"a":1}'),
    ],
)
def test_different_values_are_never_taken_for_equal(stage: Stage, one: bytes, other: bytes):
    assert stage.send("k", one).status == 201
    assert stage.send("k", other).problem == "key-reused"
    assert len(stage.seen) == 1


@pytest.mark.item("F8")
def test_a_multipart_body_is_compared_by_its_parts(stage: Stage):
    for boundary, replayed in (("one", False), ("another", True), ('"quoted"', True)):
        body = multipart(boundary.strip('"'), ("a", "1"), ("b", "2"))
        kind = f"multipart/form-data; boundary={boundary}"
        assert stage.send("k", body, kind=kind).replayed is replayed
    body = multipart("one", ("a", "1"), ("b", "3"))
    assert stage.send("k", body, kind="multipart/form-data; boundary=one").problem == "key-reused"
    assert len(stage.seen) == 1


@pytest.mark.item("F8")
def test_a_reordered_form_is_the_same_request(stage: Stage):
    assert stage.send("k", b"a=1&b=2&a=3", kind=FORM).status == 201
    assert stage.send("k", b"b=2&a=1&a=3", kind=FORM).replayed
    assert stage.send("k", b"b=2&a=3&a=1", kind=FORM).problem == "key-reused"
    assert len(stage.seen) == 1


@pytest.mark.item("F5", "F8", "D7")
def test_another_spelling_of_a_name_does_not_let_parameters_change_places(stage: Stage):
    """An application reads `%61mount` as `amount`: the last of two counts, or the first."""
    one, other = "amount=1&%61mount=900", "%61mount=900&amount=1"
    assert stage.send("form", one.encode(), kind=FORM).status == 201
    assert stage.send("form", other.encode(), kind=FORM).problem == "key-reused"
    assert stage.send("query", target=f"/a?{one}").status == 201
    assert stage.send("query", target=f"/a?{other}").problem == "key-reused"
    assert stage.send("json", b'{"amount":1,"Amount":900}').status == 201
    assert stage.send("json", b'{"Amount":900,"amount":1}').problem == "key-reused"
    assert len(stage.seen) == 3


@pytest.mark.item("F8", "F11")
def test_the_same_octets_under_another_label_are_another_request(stage: Stage):
    body = b"--a\n\n1\n--b\n\n2\n--a--"  # loose, so that its octets are compared
    assert stage.send("parts", body, kind="multipart/form-data; boundary=a").status == 201
    other = stage.send("parts", body, kind="multipart/form-data; boundary=b")
    assert other.problem == "key-reused"
    for label, problem in (("gzip", ""), ("br", "key-reused"), ("gzip", "")):
        encoded = ("Content-Encoding", label)
        assert stage.send("encoded", b"x", "POST", "/", encoded).problem == problem
    assert stage.send("encoded", b"x", "POST", "/").problem == "key-reused"
    assert len(stage.seen) == 2


@pytest.mark.item("F1")
@pytest.mark.parametrize("edge", ["asgi", "proxy"])  # WSGI shows one: the application's, too
def test_a_second_media_type_is_not_passed_over(play: Play):
    stage = play()
    json, form = ("Content-Type", "application/json"), ("Content-Type", FORM)

    def send(key: str, *lines: tuple[str, str]) -> Reply:
        return stage.send(key, b'{"a":1}', "POST", "/charges", *lines, kind=None)

    assert send("k", json).status == 201
    for two in ((json, form), (form, json), (json, json)):
        assert send("k", *two).problem == "key-reused"
    assert send("two", json, form).status == 201
    assert send("two", json, form).replayed
    assert len(stage.seen) == 2


@pytest.mark.item("F9", "D11")
def test_the_whole_body_counts_up_to_its_limit(play: Play):
    stage = play(max_body=100_000)
    start = b"x" * 99_999
    assert stage.send("k", start + b"a").status == 201
    assert stage.send("k", start + b"b").problem == "key-reused"
    reply = stage.send("big", start + b"ab")
    assert (reply.status, reply.problem) == (413, "request-too-large")
    assert len(stage.seen) == 1
    assert stage.records.stats().total == 1
    assert stage.send(None, start * 3).status == 201  # without a key there is nothing to compare


@pytest.mark.item("F9", "D11")
def test_a_chunked_body_over_the_limit_is_refused_too():
    stage = Stage("asgi")
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    chunked = ("Transfer-Encoding", "chunked")
    reply = stage.send("k", chunk * 17 + b"0\r\n\r\n", "POST", "/", chunked)
    assert reply.problem == "request-too-large"
    assert stage.seen == []
    stage.close()


@pytest.mark.item("F10")
def test_other_fields_do_not_count(stage: Stage):
    stage.send("k", b"{}", "POST", "/", ("User-Agent", "a"), ("Cookie", "s=1"))
    fields = (
        ("User-Agent", "b"),
        ("Traceparent", "00-1-2-01"),
        ("X-Request-Id", "9"),
        ("X-Retry-Count", "1"),
        ("Accept", "text/html"),
        ("Accept-Encoding", "gzip"),
        ("Accept-Language", "de"),
        ("Cookie", "s=2"),
        ("Date", "Sun, 06 Nov 1994 08:49:37 GMT"),
    )
    assert stage.send("k", b"{}", "POST", "/", *fields).replayed
    assert len(stage.seen) == 1


@pytest.mark.item("F11")
def test_an_encoded_body_is_compared_as_it_came(stage: Stage):
    encoded = ("Content-Encoding", "gzip")
    assert stage.send("k", b'{"a":1,"b":2}', "POST", "/", encoded).status == 201
    assert stage.send("k", b'{"a":1,"b":2}', "POST", "/", encoded).replayed
    assert stage.send("k", b'{"b":2,"a":1}', "POST", "/", encoded).problem == "key-reused"


@pytest.mark.item("F12")
def test_what_counts_can_be_chosen(play: Play):
    def amount(request: HttpRequest) -> object:
        return request.json()["amount"]

    stage = play(fingerprint=amount)
    assert stage.send("k", b'{"amount":5,"sent":1}').status == 201
    assert stage.send("k", b'{"amount":5,"sent":2}', target="/charges?try=2").replayed
    assert stage.send("k", b'{"amount":6,"sent":1}').problem == "key-reused"
    assert stage.send("k", b'{"amount":5}', target="/other").problem == "key-reused"
    stage = play(fingerprint_headers=("X-Account",))
    stage.send("k", b"{}", "POST", "/", ("X-Account", "1"))
    assert stage.send("k", b"{}", "POST", "/", ("X-Account", "1")).replayed
    assert stage.send("k", b"{}", "POST", "/", ("X-Account", "2")).problem == "key-reused"


@pytest.mark.item("C4", "F2")
def test_another_payload_during_execution_is_neither_run_nor_queued(stage: Stage):
    inside, go = threading.Event(), threading.Event()

    def slow(_: object) -> Answer:
        inside.set()
        assert go.wait(60)
        return Answer()

    stage.handler = slow
    first = stage.later("k")
    assert inside.wait(60)
    assert stage.send("k", b"other").problem == "key-reused"
    go.set()
    assert first.result().status == 201
    assert len(stage.seen) == 1
