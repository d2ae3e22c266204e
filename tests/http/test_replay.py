"""R: what a repeat gets."""

from __future__ import annotations

import gzip

import pytest

from tests.http.stage import JSON, Answer, Play, Stage
from twicesafe.http import HttpPolicy, HttpRequest, StoredResponse


def answers(stage: Stage, *words: object) -> None:
    stage.handler = lambda _: Answer(*words)  # type: ignore[arg-type]


@pytest.mark.item("R1")
@pytest.mark.parametrize(
    "status", [200, 201, 202, 203, 206, 301, 303, 308, 400, 404, 410, 422, 500, 501, 504]
)
def test_status_and_octets_are_the_first_ones(stage: Stage, status: int):
    body = bytes(range(256))
    answers(stage, status, [(b"content-type", b"application/octet-stream")], [body])
    replies = [stage.send("k") for _ in range(4)]
    assert {(reply.status, reply.body) for reply in replies} == {(status, body)}
    assert [reply.replayed for reply in replies] == [False, True, True, True]
    assert len(stage.seen) == 1


@pytest.mark.item("R2", "R3")
def test_end_to_end_fields_are_kept_apart_and_in_order(play: Play):
    stage = play(keep_headers=("X-Anything",))
    kept = [
        (b"content-type", b"text/plain"),
        (b"content-language", b"de"),
        (b"location", b"/charges/1"),
        (b"etag", b'"1"'),
        (b"last-modified", b"Sun, 06 Nov 1994 08:49:37 GMT"),
        (b"link", b"<1>; rel=next"),
        (b"link", b"<2>; rel=prev"),
        (b"retry-after", b"5"),
        (b"www-authenticate", b'Basic realm="x"'),
        (b"x-anything", b"a"),
        (b"x-anything", b"\xe4"),
        (b"vary", b"Accept"),
        (b"cache-control", b"private"),
    ]
    answers(stage, 201, kept, [b"x"])
    stage.send("k")
    reply = stage.send("k")
    assert reply.replayed
    names = {name.decode() for name, _ in kept}
    shown = [(n, v) for n, v in reply.fields if n in names]
    assert shown == [(n.decode(), v.decode("latin-1")) for n, v in kept]


@pytest.mark.item("R4")
def test_the_mark_is_on_replays_only_and_its_name_is_a_setting(play: Play):
    stage = play(replay_header="X-Again", max_body=10)
    assert stage.send("k", b"1")["x-again"] is None
    assert stage.send("k", b"1")["x-again"] == "true"
    for reply in (stage.send("k", b"2"), stage.send('"', b"1"), stage.send("j", b"1" * 11)):
        assert reply.status in (400, 413, 422)
        assert reply["x-again"] is None
    stage = play(replay_header=None)
    first, again = stage.send("k"), stage.send("k")
    assert len(stage.seen) == 1
    assert {n for n, _ in again.fields} - {n for n, _ in first.fields} <= {"content-length"}


@pytest.mark.item("R4")
def test_the_mark_of_another_layer_inside_is_not_kept_beside_ours(stage: Stage):
    answers(stage, 200, [JSON, (b"idempotent-replayed", b"true")], [b"{}"])
    first, again = stage.send("k"), stage.send("k")
    assert first.all("idempotent-replayed") == again.all("idempotent-replayed") == ["true"]


@pytest.mark.item("R2", "D5")
def test_only_fields_that_are_listed_or_named_are_kept(play: Play):
    """Any other field may be one client's secret, and no list of their names is complete."""
    own = [
        (b"x-order", b"o-1"),
        (b"X-Other", b"2"),
        (b"content-language", b"de"),
        (b"etag", b'"1"'),
    ]
    for settings, names in (
        ({}, {"content-language", "etag"}),
        ({"keep_headers": ("X-Order",)}, {"x-order", "content-language", "etag"}),
        ({"keep_headers": ("x-ORDER", "X-Other"), "drop_headers": ("Content-Language",)},
         {"x-order", "x-other", "etag"}),
        ({"keep_headers": ("X-Order",), "drop_headers": ("X-Order", "ETag")}, {"content-language"}),
    ):  # fmt: skip
        stage = play(**settings)
        answers(stage, 200, own, [b"{}"])
        first, again = stage.send("k"), stage.send("k")
        assert again.replayed
        for name, value in own:
            shown = name.decode().lower()
            assert first[shown] == value.decode()
            assert (again[shown] is not None) is (shown in names), (shown, settings)


@pytest.mark.item("R5", "D5")
def test_what_belongs_to_one_passage_is_not_replayed(stage: Stage):
    of_one = [
        (b"keep-alive", b"timeout=5"),
        (b"proxy-authenticate", b"Basic"),
        (b"age", b"10"),
        (b"date", b"Sun, 06 Nov 1994 08:49:37 GMT"),
        (b"x-ratelimit-remaining", b"3"),
        (b"x-request-id", b"r-1"),
    ]
    answers(stage, 200, [JSON, *of_one], [b"{}"])
    if stage.edge == "wsgi":  # its server refuses hop-by-hop fields from applications
        answers(stage, 200, [JSON, *of_one[2:]], [b"{}"])
    stage.send("k")
    reply = stage.send("k")
    assert reply.replayed
    for name, value in of_one:
        assert value.decode() not in reply.all(name.decode())
    for name in ("date", "server", "content-length"):
        assert reply[name] is not None
    assert reply["transfer-encoding"] is None


@pytest.mark.item("R5")
def test_fields_that_connection_names_are_not_replayed():
    stage = Stage("asgi", HttpPolicy(keep_headers=("X-Hop",)))
    hop = (b"connection", b"close, X-Hop, ETag")
    answers(stage, 200, [JSON, hop, (b"x-hop", b"1"), (b"etag", b'"1"')], [b"{}"])
    first, again = stage.send("k"), stage.send("k")
    assert (first["x-hop"], first["etag"]) == ("1", '"1"')
    assert (again["x-hop"], again["etag"]) == (None, None)
    stage.close()


@pytest.mark.item("R6", "D5")
@pytest.mark.parametrize("keep", [False, True])
def test_cookies_are_replayed_all_or_none(play: Play, keep: bool):
    stage = play(replay_cookies=keep)
    answers(stage, 200, [(b"set-cookie", b"a=1"), (b"set-cookie", b"b=2")], [b"x"])
    assert stage.send("k").all("set-cookie") == ["a=1", "b=2"]
    again = stage.send("k")
    assert again.replayed
    assert again.all("set-cookie") == (["a=1", "b=2"] if keep else [])
    assert len(stage.seen) == 1


@pytest.mark.item("R7")
@pytest.mark.parametrize("status", [204, 304])
def test_no_content_is_replayed_without_content(stage: Stage, status: int):
    answers(stage, status, [(b"etag", b'"1"')], [b""])
    stage.send("k")
    reply = stage.send("k")
    assert (reply.status, reply.body, reply["etag"]) == (status, b"", '"1"')
    assert reply["transfer-encoding"] is None
    assert reply["content-length"] is None or stage.edge == "wsgi"  # wsgiref adds one of its own


@pytest.mark.item("R7")
def test_a_redirect_is_replayed_and_not_followed(stage: Stage):
    answers(stage, 303, [(b"location", b"/charges/1")], [b""])
    replies = [stage.send("k") for _ in range(2)]
    assert [(r.status, r["location"]) for r in replies] == [(303, "/charges/1")] * 2
    assert len(stage.seen) == 1


@pytest.mark.item("R8", "R9")
def test_another_accept_gets_the_stored_representation_rightly_labelled(stage: Stage):
    packed = gzip.compress(b"{}")
    answers(stage, 200, [JSON, (b"content-encoding", b"gzip"), (b"vary", b"Accept")], [packed])
    stage.send("k", b"{}", "POST", "/", ("Accept-Encoding", "gzip"), ("Accept-Language", "en"))
    fields = (("Accept-Encoding", "identity"), ("Accept", "text/html"), ("Accept-Language", "de"))
    reply = stage.send("k", b"{}", "POST", "/", *fields)
    assert reply.replayed
    assert (reply["content-encoding"], reply.body) == ("gzip", packed)
    assert len(stage.seen) == 1


@pytest.mark.item("R10")
@pytest.mark.parametrize("pieces", [1, 7])
def test_a_response_over_the_limit_is_delivered_whole_and_not_kept(play: Play, pieces: int):
    stage = play(max_result_bytes=1000)
    body = [b"x" * 500] * pieces + [b"y" * 501]
    answers(stage, 200, [JSON], body)
    assert stage.send("k").body == b"".join(body)
    for _ in range(2):
        reply = stage.send("k")
        assert (reply.status, reply.problem) == (410, "result-not-kept")
    assert len(stage.seen) == 1


@pytest.mark.item("R10")
def test_the_limit_itself_is_kept(play: Play):
    stage = play(max_result_bytes=1000)
    answers(stage, 200, [JSON], [b"x" * 1000])
    assert stage.send("k").body == stage.send("k").body
    assert len(stage.seen) == 1


@pytest.mark.item("R11")
def test_scripts_of_another_origin_may_read_the_mark(stage: Stage):
    stage.send("k")
    origin = ("Origin", "https://shop.example")
    exposed = stage.send("k", b'{"amount":5}', "POST", "/charges", origin)
    assert exposed["access-control-expose-headers"] == "Idempotent-Replayed"
    assert stage.send("k")["access-control-expose-headers"] is None
    refused = stage.send("k", b"other", "POST", "/charges", origin)
    assert refused["access-control-expose-headers"] == "Link"


@pytest.mark.item("R12")
def test_current_state_instead_of_the_first_response_is_a_hook(play: Play):
    def current(request: HttpRequest, stored: StoredResponse) -> StoredResponse:
        return StoredResponse(200, stored.headers, b'{"state":"settled"}')

    stage = play(on_replay=current)
    assert stage.send("k").status == 201
    reply = stage.send("k")
    assert (reply.status, reply.body, reply.replayed) == (200, b'{"state":"settled"}', True)
    assert len(stage.seen) == 1


@pytest.mark.item("R5", "R12")
def test_a_hook_may_pass_on_what_a_service_answered(play: Play):
    """With the fields of that transfer, as a client gives them."""

    def current(request: HttpRequest, stored: StoredResponse) -> StoredResponse:
        fields = ((b"Date", b"then"), (b"Transfer-Encoding", b"chunked"), (b"Content-Length", b"9"))
        return StoredResponse(200, (*fields, (b"X-State", b"settled")), b"settled")

    stage = play(on_replay=current)
    stage.send("k")
    reply = stage.send("k")
    assert (reply.status, reply.body, reply["x-state"]) == (200, b"settled", "settled")
    assert (reply["content-length"], reply["transfer-encoding"]) == ("7", None)
    assert reply["date"] != "then"


@pytest.mark.item("S6")
def test_secrets_can_be_kept_out_of_the_store(play: Play):
    def without(stored: StoredResponse) -> StoredResponse:
        return StoredResponse(stored.status, stored.headers, stored.body.replace(b"s3cret", b"*"))

    stage = play(redact=without)
    answers(stage, 200, [JSON, (b"x-token", b"s3cret")], [b'"s3cret"'])
    first = stage.send("k")
    assert (first.body, first["x-token"]) == (b'"s3cret"', "s3cret")
    again = stage.send("k")
    assert (again.body, again["x-token"]) == (b'"*"', None)
    assert b"s3cret" not in b"".join(row.result for row in stage.memory._rows.values())


@pytest.mark.item("S6")
def test_a_redaction_that_fails_keeps_nothing(play: Play):
    stage = play(redact=lambda stored: 1 / 0)
    assert stage.send("k").status == 201
    assert stage.send("k").problem == "result-not-kept"
    assert len(stage.seen) == 1
