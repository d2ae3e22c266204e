"""K: the key's field, over real sockets; the parser alone is in `test_key_field.py`."""

from __future__ import annotations

import pytest

from tests.http.stage import Play, Stage
from twicesafe.http import HttpPolicy, JsonMember, QueryParameter


@pytest.mark.item("K1")
@pytest.mark.parametrize("name", ["idempotency-key", "IDEMPOTENCY-KEY", "Idempotency-key"])
def test_the_fields_name_has_no_case(stage: Stage, name: str):
    assert stage.send("k").status == 201
    assert stage.send(None, b'{"amount":5}', "POST", "/charges", (name, "k")).replayed
    assert len(stage.seen) == 1


@pytest.mark.item("K1")
def test_other_names_are_a_setting(play: Play):
    stage = play(HttpPolicy.paypal(), aliases=("X-Idempotency-Key",))
    for name in ("PayPal-Request-Id", "X-Idempotency-Key"):
        stage.send(None, b"{}", "POST", "/a", (name, "k"))
    both = (("PayPal-Request-Id", "k"), ("X-Idempotency-Key", '"k"'))
    assert stage.send(None, b"{}", "POST", "/a", *both).replayed
    assert len(stage.seen) == 1
    two = (("PayPal-Request-Id", "k"), ("X-Idempotency-Key", "other"))
    assert stage.send(None, b"{}", "POST", "/a", *two).problem == "key-invalid"
    assert not stage.send("k").replayed  # the draft's name means nothing here
    assert len(stage.seen) == 2


@pytest.mark.item("K2", "K4", "K5")
@pytest.mark.parametrize(
    "again", ['"a\\"b\\\\c"', '"a\\"b\\\\c";v=1', '  "a\\"b\\\\c"; a ;b=?1'.replace(" ;", ";")]
)
def test_a_string_is_unescaped_and_its_parameters_are_ignored(stage: Stage, again: str):
    assert not stage.send('"a\\"b\\\\c"').replayed
    assert stage.send(again).replayed
    assert len(stage.seen) == 1


@pytest.mark.item("K3", "K4", "D14")
def test_with_and_without_quotes_it_is_the_same_key(stage: Stage):
    key = "8e03978e-40d5-43e8-bc93-6894a57f9324"
    assert stage.send(key).status == 201
    assert stage.send(f'"{key}"').replayed
    assert len(stage.seen) == 1


@pytest.mark.item("K3")
def test_strict_wants_the_quotes(play: Play):
    stage = play(strict=True)
    assert stage.send("k").problem == "key-invalid"
    assert stage.send('"k"').status == 201
    assert len(stage.seen) == 1


@pytest.mark.item("K6", "D14")
@pytest.mark.parametrize("empty", ["", "   ", "\t", '""'])
def test_an_empty_key_is_no_missing_key(stage: Stage, empty: str):
    reply = stage.send(empty)
    assert (reply.status, reply.problem) == (400, "key-invalid")
    assert stage.seen == []


@pytest.mark.item("K7")
def test_the_longest_key_is_accepted_and_a_longer_one_is_not_cut(stage: Stage):
    assert stage.send("k" * 255).status == 201
    assert stage.send('"' + "k" * 255 + '"').replayed
    for longer in ("k" * 256, '"' + "k" * 256 + '"'):
        assert stage.send(longer).problem == "key-invalid"
    assert len(stage.seen) == 1


@pytest.mark.item("K7")
def test_the_longest_key_is_a_setting(play: Play):
    stage = play(max_key=64)
    assert stage.send("k" * 65).status == 400
    assert stage.send("k" * 64).status == 201


@pytest.mark.item("K8", "D14")
@pytest.mark.parametrize("octet", [b"\x01", b"\t", b"\x7f", b"\x80", b"\xc3\xa9", b"\xff"])
def test_octets_outside_printable_ascii_are_refused(stage: Stage, octet: bytes):
    for value in (b"a" + octet + b"b", b'"a' + octet + b'b"'):
        assert stage.send(value).status == 400
    assert stage.seen == []


@pytest.mark.item("K9")
@pytest.mark.parametrize(
    "bad",
    ['"open', '"a\\b"', '"a" tail', '"a", "b"', "a, b", "a;b", 'a"b', "a\\b", '"a";A=1', "a b"],
)
def test_a_malformed_field_is_an_error_and_never_ignored(stage: Stage, bad: str):
    reply = stage.send(bad)
    assert (reply.status, reply.problem) == (400, "key-invalid")
    assert stage.seen == []


@pytest.mark.item("K10", "D14")
@pytest.mark.parametrize("other", ["k", "other", '"k"', ""])
def test_the_field_twice_is_refused(stage: Stage, other: str):
    reply = stage.send("k", b"{}", "POST", "/", ("Idempotency-Key", other))
    assert (reply.status, reply.problem) == (400, "key-invalid")
    assert stage.seen == []


@pytest.mark.item("K11")
def test_keys_are_opaque_and_have_case(stage: Stage):
    for key in ("abc", "ABC", "Abc", "%61bc", '"abc "', '" abc"'):
        assert not stage.send(key).replayed
    assert len(stage.seen) == 6


@pytest.mark.item("K12")
@pytest.mark.parametrize(
    "hostile", ['"*"', '"a/../b"', '"\' OR 1=1 --"', '"{tag}:x"', '"%s"', '"?"', '"[a-z]"']
)
def test_keys_have_no_meaning_beyond_themselves(stage: Stage, hostile: str):
    stage.send("plain")
    assert not stage.send(hostile).replayed
    assert stage.send(hostile).replayed
    assert len(stage.seen) == 2


@pytest.mark.item("K13")
def test_a_check_of_the_format_tells_the_client_what_it_is(play: Play):
    stage = play(check_key=lambda key: None if len(key) >= 16 else "at least 16 characters")
    reply = stage.send("short")
    assert reply.problem == "key-invalid"
    assert b"at least 16 characters" in reply.body
    assert stage.send("long enough to be unguessable".replace(" ", "-")).status == 201


@pytest.mark.item("K14")
def test_a_refused_key_leaves_no_record(stage: Stage):
    assert stage.send('"k').status == 400
    assert stage.send("").status == 400
    assert stage.records.stats().total == 0
    assert stage.send("k").status == 201


@pytest.mark.item("K15")
def test_the_keys_of_browsers_are_like_any_others(stage: Stage):
    key = '"8291847091284712938"'  # Firefox: 64 bits as text
    assert stage.send(key, b"a=1", kind="application/x-www-form-urlencoded").status == 201
    assert stage.send(key, b"a=1", kind="application/x-www-form-urlencoded").replayed


@pytest.mark.item("O4")
def test_a_key_may_be_in_the_query_or_the_body(play: Play):
    stage = play(key_from=(QueryParameter("request_id"), JsonMember("meta.id")))
    assert stage.send(None, b"{}", "POST", "/a?x=1&request_id=r%2D1").status == 201
    assert stage.send(None, b"{}", "POST", "/a?x=1&request_id=r%2D1").replayed
    assert stage.send(None, b'{"meta":{"id":"m-1"}}').status == 201
    assert stage.send(None, b'{"meta": {"id": "m-1"}}').replayed
    assert len(stage.seen) == 2
    assert stage.send(None, b'{"meta":{}}').status == 201  # none anywhere: runs each time
    assert stage.send(None, b'{"meta":{}}').status == 201
    assert stage.seen[-1].body == b'{"meta":{}}'
    assert len(stage.seen) == 4
    assert stage.send("k", b'{"meta":{"id":"m-1"}}').status == 201  # the header comes first
    assert stage.send(None, b'{"meta":{"id":["m"]}}').problem == "key-invalid"
    for twice in (
        "request_id=1&request_id=2",
        "request_id=1&Request_Id=1",
        "request%5Fid=1&request_id=",
    ):
        assert stage.send(None, b"{}", "POST", f"/a?{twice}").problem == "key-invalid"


@pytest.mark.item("O4")
@pytest.mark.parametrize(
    "sender, fields, body",
    [
        ("stripe", [], b'{"id":"evt_1","pending_webhooks":%d}'),
        ("github", [("X-GitHub-Delivery", "72d3162e-cc78-11e3-81ab-4c9367dc0958")], b'{"n":%d}'),
        ("shopify", [("X-Shopify-Webhook-Id", "b54557e4-bdd9-4b37-8a5f-bf7d70bcd043")], b"%d"),
    ],
)
def test_webhooks_are_known_by_their_event(play: Play, sender: str, fields: list, body: bytes):
    stage = play(HttpPolicy.webhook(sender))
    assert stage.send(None, body % 1, "POST", "/hook", *fields).status == 201
    assert stage.send(None, body % 2, "POST", "/hook", *fields).replayed
    assert len(stage.seen) == 1
    assert stage.send(None, b"[]", "POST", "/hook").problem == "key-missing"
