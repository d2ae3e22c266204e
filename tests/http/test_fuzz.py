"""Hostile input to everything that reads input: no crash, no hang, and no two values in one.

``TWICESAFE_FUZZ=1000000`` runs that many examples of each; by default a few hundred.
"""

from __future__ import annotations

import json
import os
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from twicesafe._core.http.fingerprint import http_fingerprint, json_form
from twicesafe._core.http.key_field import BadKey, parse_key
from twicesafe._core.http.policy import HttpPolicy
from twicesafe._core.http.problems import RequestRefused
from twicesafe._core.http.rules import Admission, HttpRules
from twicesafe._core.http.stored_response import ResponseCodec
from twicesafe.errors import CorruptRecordError
from twicesafe.http import HttpRequest, JsonMember, QueryParameter, StoredResponse

MANY = settings(
    max_examples=int(os.environ.get("TWICESAFE_FUZZ", "150")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)

ODD = st.text(
    st.sampled_from('"\\;,= \ta1*-_:?@%()ABC\x7f\x00\u00e9'), max_size=60
).map(lambda text: text.encode("latin-1"))  # fmt: skip
FIELD = st.binary(max_size=300) | ODD
FRAGMENTS = st.lists(
    st.sampled_from([b"--b", b"\r\n", b"\r\n--b", b"--", b"a", b"&", b"=", b"\n", b"{", b'"', b"["])
).map(b"".join)
KINDS = st.sampled_from(
    ["application/json", "a/b+json", "multipart/form-data; boundary=b", "multipart/x; boundary=",
     "application/x-www-form-urlencoded", "", "text/plain", 'multipart/form-data; boundary="b"']
)  # fmt: skip
TREES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@pytest.mark.item("K2", "K8", "K9")
@MANY
@given(st.lists(FIELD, min_size=1, max_size=2), st.booleans())
def test_the_key_field(lines: list[bytes], strict: bool):
    try:
        key = parse_key(lines, strict=strict)
    except BadKey:
        return
    assert len(lines) == 1
    assert 1 <= len(key) <= 255
    assert all(" " <= letter <= "~" for letter in key)
    quoted = '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'
    assert parse_key([quoted.encode()], strict=True) == key  # K4: the same key in its other form


@pytest.mark.item("F6", "F7")
@MANY
@given(TREES, TREES)
def test_json_forms_are_equal_for_equal_values_and_no_others(one: Any, other: Any):
    forms = {}
    for value in (one, other):
        plain = json_form(json.dumps(value).encode())
        spread = json_form(
            json.dumps(_turned(value), indent=2, ensure_ascii=False).encode(
                "utf-8", "surrogatepass"
            )
        )
        assert plain is None or spread is None or plain == spread
        forms[_literally(value)] = plain
    found = [form for form in forms.values() if form is not None]
    assert len(set(found)) == len(found)


def _turned(value: Any) -> Any:
    """The same value with the members of its objects in another order."""
    if isinstance(value, dict):
        return {key: _turned(value[key]) for key in reversed(value)}
    return [_turned(item) for item in value] if isinstance(value, list) else value


def _literally(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


@pytest.mark.item("F6")
@MANY
@given(st.binary(max_size=200) | FRAGMENTS, KINDS, st.binary(max_size=40))
def test_fingerprints(body: bytes, kind: str, query: bytes):
    def prints(octets: bytes) -> bytes | None:
        headers = [(b"content-type", kind.encode())]
        return http_fingerprint(HttpRequest("POST", "/", b"/", query, headers, octets))

    found = prints(body)
    assert found is not None
    assert len(found) == 34
    assert prints(body) == found
    assert prints(body + b"\x00") != found


@pytest.mark.item("R1", "S6")
@MANY
@given(st.binary(max_size=200))
def test_the_decoder_of_stored_responses(row: bytes):
    codec = ResponseCodec()
    for payload in (row, b"H\x01" + row, b"j" + row):
        try:
            response = codec.decode(payload)
        except CorruptRecordError:
            continue
        assert 200 <= response.status <= 599
        assert not any(set(b"\r\n\0") & set(value) for _, value in response.headers)


@pytest.mark.item("R1")
@MANY
@given(
    st.integers(),
    st.lists(st.tuples(st.binary(max_size=9), st.binary(max_size=9)), max_size=4),
    st.binary(max_size=50),
)
def test_responses_that_are_not_quite_right(status: int, lines: Any, body: bytes):
    codec = ResponseCodec()
    flat = [text for line in lines for text in line]
    try:
        row = b"H\x01" + msgspec.msgpack.encode((status, flat, body))
    except OverflowError:
        return
    response = StoredResponse(status, tuple(lines), body)
    try:
        decoded = codec.decode(row)
    except CorruptRecordError:
        with pytest.raises(Exception, match="cannot be kept"):
            codec.encode(response)
    else:
        assert decoded == response
        assert codec.decode(codec.encode(response)) == response


RULES = HttpRules(
    HttpPolicy(
        key_from=(QueryParameter("id"), JsonMember("a.b")),
        required=("POST /a/*",),
        include=("/a/**",),
        scope=("Authorization", "cookie:s"),
        per_operation=True,
    )
)


@pytest.mark.item("A5", "S1")
@MANY
@given(
    st.text(max_size=20).map(lambda text: "/a/" + text),
    st.binary(max_size=40) | FRAGMENTS,
    st.lists(st.tuples(st.sampled_from([b"idempotency-key", b"authorization", b"cookie", b"content-length", b"content-type"]), FIELD), max_size=4),
    st.binary(max_size=100) | FRAGMENTS,
)  # fmt: skip
def test_whole_requests(path: str, query: bytes, headers: Any, body: bytes):
    target = path.encode("utf-8", "surrogatepass")
    asked = HttpRequest("POST", path, target, query, headers, body)
    status = 200
    try:
        looked = RULES.look(asked)
        if looked is not None:
            admission = RULES.admit(asked, looked)
            assert admission is None or isinstance(admission, Admission)
    except RequestRefused as refusal:
        status = RULES.refuse(asked, refusal.problem).status
    assert status in (200, 400, 413)
