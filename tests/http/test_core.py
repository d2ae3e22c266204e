"""The rules alone, without a server: parsers, forms, codec, routes, recordings, settings."""

from __future__ import annotations

import inspect
from dataclasses import fields
from itertools import repeat
from typing import Any

import msgspec
import pytest

from twicesafe._core.http import fingerprint as fingerprints
from twicesafe._core.http.fingerprint import canonical_print, http_fingerprint, json_form
from twicesafe._core.http.key_field import BadKey, parse_key
from twicesafe._core.http.policy import HttpPolicy
from twicesafe._core.http.problems import CASES
from twicesafe._core.http.routes import Routes
from twicesafe._core.http.rules import HttpRules, Looked
from twicesafe._core.http.stored_response import NOT_KEPT, Ending, ResponseCodec, ResponseRecording
from twicesafe.errors import ConfigurationError, CorruptRecordError, NotStorableError, TooLargeError
from twicesafe.http import BodyHash, HeaderField, HttpRequest, QueryParameter, StoredResponse


def request(
    body: bytes = b"",
    kind: str = "application/json",
    method: str = "POST",
    target: bytes = b"/a",
    query: bytes = b"",
    *more: tuple[bytes, bytes],
) -> HttpRequest:
    headers = [(b"content-type", kind.encode()), *more]
    return HttpRequest(method, target.decode(), target, query, headers, body)


# --- keys ------------------------------------------------------------------------------------


@pytest.mark.item("K2", "K5")
@pytest.mark.parametrize(
    "parameters",
    ["", ";a", "; a", ";a=1", ";a=-1.5", ';a="x;y"', ";a=tok/en:1", ";a=:aGk=:", ";a=?0", ";a=@1659578233",
     ';a=%"f%c3%bc"', ";a;b;*c=1", ";a_-.*1=*t"],
)  # fmt: skip
def test_parameters_are_parsed_and_ignored(parameters: str):
    assert parse_key([f'"k"{parameters}'.encode()]) == "k"


@pytest.mark.item("K9")
@pytest.mark.parametrize(
    "tail",
    [";", "; ", ";A", ";a=", ";a=;", ";1a", ";a=1.2345", ";a=1234567890123456", ";a=?2", ";a=:a!:",
     ';a="', ";a=%x", ';a=%"%C3"', " ;a", ",", "x", '"', "\\"],
)  # fmt: skip
def test_malformed_parameters_are_an_error(tail: str):
    with pytest.raises(BadKey):
        parse_key([f'"k"{tail}'.encode()])


@pytest.mark.item("K8")
@pytest.mark.parametrize("octet", [*range(0x20), *range(0x7F, 0x100)])
def test_no_octet_outside_printable_ascii(octet: int):
    for value in (b"a%cb" % octet, b'"a%cb"' % octet):
        with pytest.raises(BadKey):
            parse_key([value])


@pytest.mark.item("K3")
@pytest.mark.parametrize("octet", range(0x21, 0x7F))
def test_bare_keys_are_visible_characters_without_delimiters(octet: int):
    value = b"a%cb" % octet
    if octet in b'",;\\':
        with pytest.raises(BadKey):
            parse_key([value])
    else:
        assert parse_key([value]) == value.decode()


@pytest.mark.item("P5")
def test_what_is_said_about_a_bad_key_quotes_nothing_of_it():
    for value in (b'"canary', b"canary,canary", b"canary" * 100, b"canary\xff"):
        with pytest.raises(BadKey) as caught:
            parse_key([value])
        assert "canary" not in str(caught.value)


# --- fingerprints ------------------------------------------------------------------------------


@pytest.mark.item("F6", "F7")
def test_json_forms():
    same = json_form(b'{"a":[1,{"c":null,"b":"\\u0041"}]}')
    assert same == json_form(b' {"a" : [ 1 , {"b":"A", "c":null} ] }\n')
    different = [
        b"1", b"1.0", b"1e0", b"10e-1", b"-0", b"0", b'"1"', b"true", b"null", b"[]", b"{}", b"[1]",
        b"[[1]]", b'{"1":1}', b'{"a":1}', b'{"A":1}', b'{"a":[1,2]}', b'{"a":[2,1]}', b'""',
        b"123456789012345678901234567890", b"123456789012345678901234567891", b'["1"]',
    ]  # fmt: skip
    forms = [json_form(text) for text in different]
    assert None not in forms
    assert len(set(forms)) == len(different)


@pytest.mark.item("F7", "D7")
@pytest.mark.parametrize(
    "text",
    [
        b'{"a":1,"a":1}',
        b'{"a":1,"b":{"c":[{"d":1,"d":2}]}}',
        b'{"a":1,"A":2}',
        b'{"k":1,"\xe2\x84\xaa":2}',  # the Kelvin sign is a k where names have no case
        b'{"a":1,"a\\u0000":2}',
        b'{"a":1,"\\u0061":2}',
    ],
)
def test_members_that_a_reader_could_take_for_one_have_no_form(text: bytes):
    assert json_form(text) is None
    asked = request(text)
    assert http_fingerprint(asked) != http_fingerprint(request(text + b" "))
    assert http_fingerprint(asked) == http_fingerprint(request(text))


@pytest.mark.item("D11")
def test_the_cost_of_a_form_grows_with_the_text_and_not_with_its_depth(
    monkeypatch: pytest.MonkeyPatch,
):
    """Work is counted, not timed: each byte of a nested text is packed once."""
    packed: list[int] = []
    pack = fingerprints._pack

    def counted(value: Any) -> bytes:
        made = pack(value)
        packed.append(len(made))
        return made

    monkeypatch.setattr(fingerprints, "_pack", counted)
    text = b'"' + b"x" * 10_000 + b'"'
    for _ in range(100):
        text = b'{"a":' + text + b',"a":1}'
    json_form(text)
    json_form(text.replace(b',"a":1', b',"b":1'))
    assert sum(packed) <= 2 * len(text)


def same(one: HttpRequest, other: HttpRequest) -> bool:
    return http_fingerprint(one) == http_fingerprint(other)


FORM = "application/x-www-form-urlencoded"


@pytest.mark.item("F5", "F8", "D7")
@pytest.mark.parametrize(
    "one, other",
    [
        (b"amount=1&%61mount=900", b"%61mount=900&amount=1"),
        (b"amount=1&%2561mount=900", b"%2561mount=900&amount=1"),  # decoded twice
        (b"amount=1&Amount=900", b"Amount=900&amount=1"),
        (b"a[b]=1&a=2", b"a=2&a[b]=1"),
        (b"a[b]=1&a%5Bb%5D=2", b"a%5Bb%5D=2&a[b]=1"),
        (b"a.b=1&a_b=2", b"a_b=2&a.b=1"),  # PHP
        (b"a+b=1&a_b=2", b"a_b=2&a+b=1"),
        (b"a%00x=1&a=2", b"a=2&a%00x=1"),
        (b"a=1&a=900", b"a=900&a=1"),
        (b"a&a=1", b"a=1&a"),
        (b"b=2;a=1&a=2", b"a=2&b=2;a=1"),
        (b"&a=1&=2", b"=2&a=1&"),
        (b"a=1&\xef\xbb\xbfa=2", b"\xef\xbb\xbfa=2&a=1"),
        (b"x=a+b", b"x=a%20b"),  # equal to most readers: refused, never run
    ],
)
def test_parameters_that_a_reader_could_take_for_one_keep_their_order(one: bytes, other: bytes):
    assert not same(request(one, FORM), request(other, FORM))
    assert not same(request(query=one), request(query=other))
    assert same(request(one, FORM), request(one, FORM))


@pytest.mark.item("F5", "F8")
@pytest.mark.parametrize(
    "one, other",
    [
        (b"a=1&b=2&a=3", b"b=2&a=1&a=3"),
        (b"user_id=1&user_name=x", b"user_name=x&user_id=1"),
        (b"Zip=1&City=2", b"City=2&Zip=1"),
        (b"a[x]=1&b[]=2&b[]=3", b"b[]=2&b[]=3&a[x]=1"),
        (b"$top=1&%24skip=2", b"%24skip=2&$top=1"),
        (b"a=%ff&b=\xff", b"b=\xff&a=%ff"),
    ],
)
def test_parameters_of_other_names_have_no_order(one: bytes, other: bytes):
    assert same(request(one, FORM), request(other, FORM))
    assert same(request(query=one), request(query=other))


@pytest.mark.item("D11")
def test_too_many_parameters_are_compared_as_they_came():
    many = [b"p%d=1" % number for number in range(1001)]
    one, other = b"&".join(many), b"&".join(reversed(many))
    assert not same(request(one, FORM), request(other, FORM))
    assert same(request(b"&".join(many[:1000]), FORM), request(b"&".join(many[999::-1]), FORM))


TWO_TYPES = (b"content-type", b"text/plain")
GZIP, BR = (b"content-encoding", b"gzip"), (b"content-encoding", b"br")
MULTI = "multipart/form-data; boundary="


@pytest.mark.item("F1", "F8", "F11")
@pytest.mark.parametrize(
    "one, other",
    [
        # the same octets, which say something else to who reads them as they are labelled
        (request(b"x", "text/plain"), request(b"x", "text/plain; charset=latin-1")),
        (request(b'"\xc3\xa9"', "a/b+json; charset=latin-1"), request(b'"\\u00e9"', "a/b+json; charset=latin-1")),
        (request(b"{}", "application/json; v=1"), request(b"{}", "application/json; v=2")),
        (request(b"{}"), request(b"{}", "application/json", "POST", b"/a", b"", TWO_TYPES)),
        (request(b"x", "", "POST", b"/a", b"", GZIP), request(b"x", "", "POST", b"/a", b"", BR)),
        (request(b"x", "", "POST", b"/a", b"", GZIP), request(b"x", "")),
        (request(b"x", "", "POST", b"/a", b"", GZIP, BR), request(b"x", "", "POST", b"/a", b"", BR, GZIP)),
        (request(b"--a\n\n1\n--b\n\n2", MULTI + "a"), request(b"--a\n\n1\n--b\n\n2", MULTI + "b")),
        (request(b"x", MULTI + "a; boundary=b"), request(b"x", MULTI + "b; boundary=a")),
        (request(b"x", MULTI + "a; boundary=b"), request(b"x", MULTI + "c; boundary=b")),
        (request(b"x", "multipart/x; boundary*=a"), request(b"x", "multipart/x; boundary*=b")),
        # the same parts, but to a reader of bare LF only one of them has a part inside
        (request(b"--a\r\nA: 1\r\n\r\n1\n--a\n\n2\r\n--a--", MULTI + "a"),
         request(b"--b\r\nA: 1\r\n\r\n1\n--a\n\n2\r\n--b--", MULTI + "b")),
    ],
)  # fmt: skip
def test_labels_that_say_how_to_read_a_body_count(one: HttpRequest, other: HttpRequest):
    assert not same(one, other)
    assert same(one, msgspec.structs.replace(one))
    for octets in ("canonical", "octets"):
        assert http_fingerprint(one, octets) != http_fingerprint(other, octets)


@pytest.mark.item("F1", "F8")
@pytest.mark.parametrize(
    "kind",
    ["application/json; charset=utf-8", 'Application/JSON;charset="UTF-8"', "application/json;", "application/json; charset=utf8 ; "],
)  # fmt: skip
def test_labels_that_say_nothing_do_not_count(kind: str):
    assert same(request(b'{"a":1,"b":2}'), request(b'{"b":2,"a":1}', kind))
    part = b"--%b\r\nA: 1\r\n\r\none\r\n--%b--"
    assert same(
        request(part % (b"x", b"x"), MULTI + "x"),
        request(part % (b"y y", b"y y"), 'multipart/form-data; charset=utf-8; Boundary="y y"'),
    )


@pytest.mark.item("F12")
def test_ordinary_requests_keep_scheme_1_and_only_others_have_scheme_2():
    for ordinary in (request(b"{}"), request(b"a=1&b=2", FORM), request(query=b"a_b=1&c=2")):
        assert canonical_print(ordinary)[:2] == b"H\x01"
    for other in (
        request(b"a=1&B=2", FORM),
        request(query=b"a=1&b.c=2"),
        request(b"x", "text/plain; charset=latin-1"),
        request(b"x", "", "POST", b"/a", b"", GZIP),
        request(b"x", MULTI + "a"),
    ):
        assert canonical_print(other)[:2] == b"H\x02"


@pytest.mark.item("F12")
@pytest.mark.parametrize(
    "asked, digest",
    [
        (request(b"b.c=1&a=2", FORM, "POST", b"/a", b"A=1&a=2"), "ODD_FORM"),
        (request(b"x", "text/plain; charset=latin-1; v=1"), "LABELS"),
        (request(b"x", MULTI + "b", "POST", b"/a", b"", GZIP), "ENCODED"),
    ],
)
def test_scheme_2_never_changes(asked: HttpRequest, digest: str):
    assert canonical_print(asked).hex() == GOLDEN[digest]


@pytest.mark.item("F12")
@pytest.mark.parametrize(
    "asked, digest",
    [
        (request(b'{"b":1,"a":2.50}'), "JSON"),
        (request(b"b=1&a=2&a=1", "application/x-www-form-urlencoded", "PATCH"), "FORM"),
        (request(b"\x00\xff", "application/octet-stream", "POST", b"/x%2Fy", b"z=1&a=2"), "OCTETS"),
        (request(b"--b\r\nA: 1\r\n\r\none\r\n--b--\r\n", "multipart/form-data; boundary=b"), "PARTS"),
        (request(), "EMPTY"),
    ],
)  # fmt: skip
def test_scheme_1_never_changes(asked: HttpRequest, digest: str):
    """Golden: stored keys are compared with these for as long as they are kept."""
    found = http_fingerprint(asked)
    assert found is not None
    assert found.hex() == GOLDEN[digest]


GOLDEN = {
    "JSON": "4801d8ba1b60ee7d75261dfa603a6f080e6243d75aac18ebb76eda0746961bee5454",
    "FORM": "4801e2e478767e11f8b201be98e57775433f5f4d45edf7195b50dafdcbaf41242646",
    "OCTETS": "480160b7e2c30db31ac2415327010cfd689d666fa13ed922e02216730378fc80dbb6",
    "PARTS": "480125abf59a3cb37074956c3eb1a2ee94868caba03e61813b4f5ac960d2cb2f1170",
    "EMPTY": "4801f88983fdca9ecccd85095b97f9d05bcfcf3ac6560a721a6a3285baadb0619427",
    "ODD_FORM": "4802b5b016c080934416d5c50e5934fad94bf2a91b987794a1c541af105902eb1c94",
    "LABELS": "4802e3ea2b0c64cdca651f7ebb93edab2b054ad02eaf0f15316b10f2c7f803a6f85b",
    "ENCODED": "4802fbe1bc8dfe3b4017b8a433eb0bfefb7c2ba18637702b3c43b7087be3e9549b28",
}


@pytest.mark.item("F1")
def test_parts_of_a_request_do_not_run_together():
    prints = {
        http_fingerprint(one)
        for one in (
            request(b"x", "", "POST", b"/ab", b"c"),
            request(b"x", "", "POST", b"/a", b"bc"),
            request(b"", "", "POST", b"/ab", b"cx"),
            request(b"x", "c", "POST", b"/ab", b""),
            request(b"x", "", "POST/", b"ab", b"c"),
        )
    }
    assert len(prints) == 5


@pytest.mark.item("F8")
@pytest.mark.parametrize(
    "body",
    [b"", b"--b", b"--b--", b"x--b\r\n\r\n1\r\n--b--", b"--b\r\nno blank line\r\n--b--", b"--bx\r\n\r\n1\r\n--b--",
     b"--b\r\n\r\n1\r\n--b--tail", b"--b\r\n\r\n1", b"--b\n\n1\n--b--"],
)  # fmt: skip
def test_odd_multipart_bodies_are_compared_as_octets(body: bytes):
    kind = "multipart/form-data; boundary=b"
    assert http_fingerprint(request(body, kind)) != http_fingerprint(request(body + b" ", kind))


def test_a_key_of_the_body_itself():
    first, other = BodyHash()(request(b'{"a":1,"b":2}')), BodyHash()(request(b'{"b":2, "a":1}'))
    assert first == other
    assert first != BodyHash()(request(b'{"a":1}'))
    assert QueryParameter("a b")(request(query=b"x&a+b=%C3%A9")) == "é"


@pytest.mark.item("O4")
def test_blanks_around_an_id_are_no_part_of_it():
    """Servers differ in what they leave of them."""
    for value in (b"e-1", b" e-1", b"e-1\t ", b"\te-1"):
        asked = request(b"", "", "POST", b"/", b"", (b"x-id", value))
        assert HeaderField("X-Id")(asked) == "e-1"


# --- stored responses --------------------------------------------------------------------------


@pytest.mark.item("R1", "R3")
def test_a_stored_response_comes_back_the_same():
    codec = ResponseCodec()
    for response in (
        StoredResponse(200, (), b""),
        StoredResponse(599, ((b"a", b"1"), (b"b", b"\xff"), (b"a", b"2")), bytes(range(256))),
    ):
        assert codec.decode(codec.encode(response)) == response


@pytest.mark.item("R5", "S6", "D6")
@pytest.mark.parametrize(
    "status, line",
    [
        (200, (b"a", b"1\r\nSet-Cookie: x")),
        (200, (b"a", b"1\n")),
        (200, (b"a", b"\0")),
        (200, (b"a\r", b"1")),
        (200, (b"a b", b"1")),
        (200, (b"", b"1")),
        (200, (b"content-length", b"1")),
        (200, (b"Transfer-Encoding", b"chunked")),
        (99, (b"a", b"1")),
        (1000, (b"a", b"1")),
    ],
)
def test_what_would_break_a_message_is_refused_both_ways(status: int, line: Any):
    codec = ResponseCodec()
    bad = StoredResponse(status, (line,), b"")
    with pytest.raises(NotStorableError):
        codec.encode(bad)
    good = codec.encode(StoredResponse(200, ((b"a", b"1"),), b""))
    row = good[:2] + msgspec.msgpack.encode((status, list(line), b""))
    with pytest.raises(CorruptRecordError):
        codec.decode(row)


def test_only_responses_are_stored():
    with pytest.raises(TooLargeError):
        ResponseCodec().encode(NOT_KEPT)
    with pytest.raises(NotStorableError):
        ResponseCodec().encode({"status": 200})


# --- recordings and routes -----------------------------------------------------------------------


@pytest.mark.item("E1", "E2", "E3", "E7")
def test_how_a_recording_ends():
    def end(status: int, body: bytes, *headers: tuple[bytes, bytes]) -> object:
        recording = ResponseRecording(HttpPolicy(), frozenset())
        recording.start(status, headers)
        recording.feed(body)
        return recording.end()

    assert end(200, b"") == StoredResponse(200, (), b"")
    assert end(500, b"") == StoredResponse(500, (), b"")
    assert end(429, b"") is Ending.RELEASE
    assert end(200, b"abc", (b"Content-Length", b"3")) == StoredResponse(200, (), b"abc")
    assert end(200, b"abc", (b"content-length", b"4")) is Ending.UNKNOWN
    assert end(200, b"abc", (b"content-length", b"2")) is Ending.UNKNOWN
    assert end(304, b"", (b"content-length", b"4")) == StoredResponse(304, (), b"")
    nothing = ResponseRecording(HttpPolicy(), frozenset())
    assert nothing.end() is Ending.UNKNOWN


@pytest.mark.item("A7")
@pytest.mark.parametrize(
    "pattern, yes, no",
    [
        ("POST", "POST /a", "PATCH /a"),
        ("/a", "PUT /a", "PUT /a/"),
        ("POST /a/*", "POST /a/b", "POST /a"),
        ("/a/*/c", "POST /a/b/c", "POST /a/b/d"),
        ("/a/**", "POST /a/b/c", "POST /ab"),
        ("PUT /**", "PUT /", "POST /"),
    ],
)
def test_route_patterns(pattern: str, yes: str, no: str):
    routes = Routes([pattern])
    assert routes.match(*yes.split(" "))
    assert not routes.match(*no.split(" "))


@pytest.mark.item("A7")
def test_route_patterns_of_a_mounted_application():
    routes = Routes(["/charges"])
    assert routes.match("POST", "/v1/charges", "/v1")
    assert routes.match("POST", "/charges", "/v1")  # a server that does not repeat its root path
    assert Routes(["/v1/charges"]).match("POST", "/v1/charges", "/v1")
    assert not routes.match("POST", "/v1/charges")
    assert not routes.match("POST", "/v12/charges", "/v1")
    assert not routes.match("POST", "/v1/v1/charges", "/v1")


# --- settings --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "setting, value",
    [
        ("header", "bad name"),
        ("header", ""),
        ("aliases", "X-Key"),
        ("aliases", ("a:",)),
        ("max_key", 0),
        ("max_key", 256),
        ("check_key", "uuid"),
        ("key_from", ("query",)),
        ("methods", ()),
        ("methods", ("GET",)),
        ("methods", ("post",)),
        ("methods", "POST"),
        ("required", ("charges",)),
        ("required", "/charges"),
        ("include", ("/a/b*",)),
        ("exclude", ("POST charges",)),
        ("retry", (1,)),
        ("scope", "Authorization"),
        ("scope", ()),
        ("scope_secret", "text"),
        ("fingerprint", "exact"),
        ("max_body", -1),
        ("max_result_bytes", 1.5),
        ("mismatch_status", 200),
        ("in_flight_status", True),
        ("wait", -1),
        ("release", (200,)),
        ("takeover", "rerun"),
        ("replay_header", "a b"),
        ("keep_headers", "X-Order"),
        ("keep_headers", ("a b",)),
        ("keep_headers", ("Date",)),
        ("keep_headers", ("Transfer-Encoding",)),
        ("keep_headers", ("Set-Cookie",)),
        ("drop_headers", ("a:b",)),
        ("redact", 1),
        ("problem_base", "a b"),
        ("documentation", '"'),
        ("outage", "yes"),
        ("lease", 0),
        ("max_lease", 1),
        ("retention", 0),
        ("codec", "json"),
    ],
)
def test_nonsense_is_refused_by_name(setting: str, value: Any):
    with pytest.raises(ConfigurationError, match=setting):
        HttpPolicy().replace(**{setting: value})


@pytest.mark.item("O4")
@pytest.mark.parametrize(
    "more", [{"strict": True}, {"aliases": ("X-Key",)}, {"forward_key": False}]
)
def test_settings_of_a_field_that_there_is_not_are_refused(more: dict[str, Any]):
    with pytest.raises(ConfigurationError, match="key_from="):
        HttpPolicy(header=None)
    with pytest.raises(ConfigurationError, match="without header="):
        HttpPolicy.webhook("github", **more)
    assert HttpPolicy.webhook("github", header="X-Key", **more).key_fields[0] == "X-Key"


def test_unknown_settings_are_refused_with_a_hint():
    with pytest.raises(ConfigurationError, match="did you mean 'retention'"):
        HttpPolicy().replace(retentoin=1)
    with pytest.raises(ConfigurationError, match="github"):
        HttpPolicy.webhook("gitlab")


def test_every_setting_is_explained_and_profiles_differ():
    source = inspect.getsource(HttpPolicy)
    for field in fields(HttpPolicy):
        assert f"    {field.name}: " in source
    made = [
        HttpPolicy.draft(),
        HttpPolicy.stripe(),
        HttpPolicy.paypal(),
        HttpPolicy.webhook("github"),
    ]
    assert made[0] == HttpPolicy()
    assert len({repr(policy) for policy in made}) == 4
    assert HttpPolicy.stripe(mismatch_status=409).mismatch_status == 409


@pytest.mark.item("P2")
def test_the_cases_are_these():
    assert set(CASES) == {
        "key-missing", "key-invalid", "key-reused", "key-untrusted", "in-progress", "outcome-unknown",
        "result-not-kept", "request-too-large", "request-incomplete", "length-required",
        "store-unavailable",
        "upstream-unavailable", "upstream-failed", "attempt-failed", "request-malformed",
        "upgrade-refused",
    }  # fmt: skip


class Endless:
    def __iter__(self) -> Any:
        return repeat("a")


@pytest.mark.item("S4")
@pytest.mark.parametrize(
    "named, what",
    [
        (None, "returned None"),
        (7, "of type int"),
        (b"a", "of type bytes"),
        ({"a"}, "of type set"),
        ({"a": "b"}, "of type dict"),
        ("", "0 bytes"),
        ((), "no text"),
        (("a", ""), "0 bytes"),
        (("a", None), "None as a part"),
        ((1,), "of type int"),
        ("x" * 256, "256 bytes"),
        ("\u00e9" * 128, "256 bytes"),
        ("\ud800", "surrogate"),
        (("a",) * 8, "too many"),
        (Endless(), "too many"),
    ],
)
def test_a_scope_function_must_return_a_name(named: Any, what: str):
    rules = HttpRules(HttpPolicy(scope=lambda _: named))
    with pytest.raises(ConfigurationError, match=r"scope=.*nothing was run") as caught:
        rules.admit(request(), Looked("k"))
    assert what in str(caught.value)
    assert "xxx" not in str(caught.value)


@pytest.mark.item("S4")
def test_a_scope_has_room_for_what_is_around_it():
    seven = HttpPolicy(scope=lambda _: ["a"] * 7)
    admission = HttpRules(seven).admit(request(), Looked("k"))
    assert admission is not None
    assert len(admission.key.scope) == 8
    for rules in (HttpRules(seven.replace(per_operation=True)), HttpRules(seven, ("outer",))):
        with pytest.raises(ConfigurationError, match="up to 6 texts"):
            rules.admit(request(), Looked("k"))
    with pytest.raises(ConfigurationError, match="at most 8 parts"):
        HttpRules(HttpPolicy(), ("outer",) * 7)


@pytest.mark.item("O4", "R12")
def test_other_functions_get_an_error_that_says_what_to_return():
    number: Any = lambda _: 7  # noqa: E731
    with pytest.raises(ConfigurationError, match=r"key_from=.*type int"):
        HttpRules(HttpPolicy(key_from=(number,))).admit(request(), Looked(None))
    nothing: Any = lambda *_: None  # noqa: E731
    with pytest.raises(ConfigurationError, match=r"on_replay=.*None"):
        HttpRules(HttpPolicy(on_replay=nothing)).replay(request(), StoredResponse(200, (), b""))


@pytest.mark.item("S4")
def test_differing_cookies_are_joined_unambiguously():
    def cookie(*lines: bytes) -> str | None:
        return request(b"", "", "POST", b"/", b"", *((b"cookie", n) for n in lines)).cookie("s")

    assert cookie() is cookie(b"other=1; ss=2") is None
    assert cookie(b"a=1; s=x") == cookie(b"s=x", b" s = x ") == "x"
    assert cookie(b"s=x; s=y") == cookie(b"s=x", b"s=y; s=x") == "x; y"
    assert cookie(b"s=y; s=x") == "y; x"
    assert cookie(b"s") == ""


def test_a_label_may_be_a_bytearray():
    """ASGI asks for bytes; some test clients do not know."""
    whole = request(b"{}")
    loose = [(name, bytearray(value)) for name, value in whole.headers]
    other = msgspec.structs.replace(whole, headers=loose)
    assert http_fingerprint(whole) == http_fingerprint(other)
