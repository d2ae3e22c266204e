"""Targets: everything that reads what others wrote, whether it came in a request or from a store.

Each returns True for "read", False for "refused in the way that was promised"; whatever else
happens is a finding. What must hold of a thing that was read is asserted here.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from twicesafe import Key
from twicesafe._core.http.fingerprint import http_fingerprint, json_form
from twicesafe._core.http.key_field import BadKey, parse_key, require_key
from twicesafe._core.http.policy import HttpPolicy
from twicesafe._core.http.problems import RequestRefused
from twicesafe._core.http.rules import HttpRules
from twicesafe._core.http.stored_response import ResponseCodec, ResponseRecording
from twicesafe._engines.redis.record_layout import row_of
from twicesafe._engines.sql.commands import row_from
from twicesafe._values.codecs import JsonCodec
from twicesafe.errors import CorruptRecordError, InvalidKeyError, NotStorableError, StoreError
from twicesafe.http import BodyHash, HttpRequest, JsonMember, QueryParameter, StoredResponse

from . import wire

__all__ = ["DIFFERENTIAL", "TARGETS", "Target"]


@dataclass(frozen=True)
class Target:
    name: str
    read: Callable[[bytes], bool]
    seeds: tuple[bytes, ...]
    words: tuple[bytes, ...]


# --- requests ----------------------------------------------------------------------------------


def key_field(octets: bytes) -> bool:
    lines = octets.split(b"\x1e", 1)
    try:
        key = parse_key(lines, strict=len(octets) % 2 == 0)
    except BadKey:
        return False
    assert len(lines) == 1
    assert 1 <= len(key) <= 255
    assert all(" " <= letter <= "~" for letter in key)
    quoted = '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'
    assert parse_key([quoted.encode()], strict=True) == key
    return True


def key_check(octets: bytes) -> bool:
    text = _text(octets)
    try:
        checked = require_key(text, 255)
    except BadKey:
        checked = ""
    try:
        key = Key(text, scope=(text[:20] or "s", "http"))
    except InvalidKeyError:
        assert not checked, "the layer lets a key pass that the receiver refuses"
        return False
    assert key.value == text
    assert len(key.id) == 32
    assert key.id != Key(text, scope=(text[:20] + "s", "http")).id
    return bool(checked)


def _text(octets: bytes) -> str:
    """Lone surrogates too, which no request can bring but a hook can."""
    try:
        return octets.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return octets.decode("latin-1")


def fingerprint(octets: bytes) -> bool:
    kind, _, body = octets.partition(b"\x1e")

    def prints(content: bytes) -> bytes | None:
        lines = [(b"content-type", kind)]
        return http_fingerprint(HttpRequest("POST", "/", b"/", kind, lines, content))

    found = prints(body)
    assert found is not None
    assert len(found) == 34
    assert prints(body) == found
    assert prints(body + b"\x00") != found
    return True


def json_body(octets: bytes) -> bool:
    form = json_form(octets)
    if form is None:
        return False
    assert json_form(b" " + octets + b"\n") == form
    assert json_form(b"[" + octets + b"]") != form
    return True


RULES = HttpRules(
    HttpPolicy(
        key_from=(QueryParameter("id"), JsonMember("a.b"), BodyHash()),
        required=("POST /a/*",),
        include=("/a/**", "/b"),
        exclude=("/a/x",),
        scope=("Authorization", "cookie:s"),
        aliases=("X-Key",),
        per_operation=True,
        max_body=1000,
    )
)


def whole_request(octets: bytes) -> bool:
    """Path, query, field lines (name, value) and body, apart by 0x1E."""
    path, query, *rest = [*octets.split(b"\x1e"), b"", b""]
    *lines, body = rest or [b""]
    fields = [(n.lower(), v) for n, _, v in (line.partition(b":") for line in lines)]
    text = path.decode("utf-8", "surrogateescape")
    asked = HttpRequest("POST", text, path, query, fields, body)
    try:
        looked = RULES.look(asked)
        if looked is None:
            return False
        admission = RULES.admit(asked, looked)
    except RequestRefused as refusal:
        answer = RULES.refuse(asked, refusal.problem)
        assert answer.status in (400, 413)
        _require_clean(answer)
        return False
    assert admission is not None  # the hash of a body is always a key
    assert admission.fingerprint is not None
    return True


# --- responses ---------------------------------------------------------------------------------

CODEC = ResponseCodec()


def recorder(octets: bytes) -> bool:
    """Status (2 octets), field lines (name:value) and pieces of the body, apart by 0x1E."""
    status = int.from_bytes(octets[:2], "big")
    *lines, body = octets[2:].split(b"\x1e")
    fields = [(n, v) for n, _, v in (line.partition(b":") for line in lines)]
    pieces = [body[at : at + 7] for at in range(0, len(body), 7)]
    recording = ResponseRecording(RULES.policy, RULES.kept_names)
    recording.start(status, fields)
    for piece in pieces:
        recording.feed(piece)
    result = recording.end()
    if not isinstance(result, StoredResponse):
        return False
    assert result.body in (body, b"")
    try:
        payload = CODEC.encode(result)
    except NotStorableError:
        return False
    assert CODEC.decode(payload) == result
    replayed = RULES.replay(HttpRequest("POST", "/", b"/", b"", [(b"origin", b"x")]), result)
    _require_clean(replayed)
    names = [name for name, _ in replayed.headers]
    assert b"set-cookie" not in names
    assert b"transfer-encoding" not in names
    assert names.count(b"content-length") == (status not in (204, 304))
    return True


def stored_response(octets: bytes) -> bool:
    try:
        response = CODEC.decode(octets)
    except CorruptRecordError:
        return False
    assert 200 <= response.status <= 599
    _require_clean(response)
    assert CODEC.decode(CODEC.encode(response)) == response
    return True


def _require_clean(response: StoredResponse) -> None:
    for name, value in response.headers:
        assert name
        assert not set(b"\r\n\0") & set(name + value)


# --- what a store returns ----------------------------------------------------------------------

RESULTS = JsonCodec()
DECLARED: tuple[Any, ...] = (Any, int, dict[str, int], list[Decimal], uuid.UUID, tuple[str, ...])


def result(octets: bytes) -> bool:
    read = False
    for declared in DECLARED:
        try:
            value = RESULTS.decode(octets, declared)
        except CorruptRecordError:
            continue
        read = True
        try:
            RESULTS.encode(value, declared)
        except NotStorableError:
            continue
    return read


def redis_record(octets: bytes) -> bool:
    try:
        row = row_of(b"\x01" * 32, octets)
    except StoreError:
        return False
    assert row.fence >= 0
    assert row.attempt >= 0
    return True


def sql_record(octets: bytes) -> bool:
    """The columns that are read and not only passed on: scope, state, cause."""
    state, cause = [*octets[:2], 0, 0][:2]
    scope = octets[2:].decode("utf-8", "replace")
    columns = (b"\x01" * 32, scope, "k", state - 3, 1, 1, b"o", 0, 0, 0, 0, 0, cause - 3, None, None, "")  # fmt: skip
    try:
        row = row_from(columns)
    except StoreError:
        return False
    assert all(isinstance(part, str) for part in row.scope)
    return True


# --- good input to begin with ------------------------------------------------------------------

_FIELD = (b'"', b"\\", b'\\"', b";", b",", b" ", b"\t", b"=", b"a=1", b"?1", b":AA==:", b"@1", b'%"', b"\x1e", b"\x7f", b"\xc3\xa9", b"-", b"." , b"k" * 60)  # fmt: skip
_JSON = (b"{", b"}", b"[", b"]", b'"', b"\\u", b"\\ud800", b":", b",", b"null", b"true", b"NaN", b"1e999", b"-0", b"0.10", b'"a":', b"\xef\xbb\xbf", b"[" * 50, b"9" * 50)  # fmt: skip
_BODY = (b"\x1e", b"&", b"=", b"+", b"%41", b"--b", b"\r\n", b"\r\n\r\n", b"boundary=", b"multipart/form-data", b"application/json", *_JSON)  # fmt: skip
_LINES = (b"\x1e", b":", b"\r", b"\n", b"\0", b"content-length:", b"set-cookie:a=b", b"connection:x", b"transfer-encoding:chunked", b"x:y", b"Content-Length:7", b"\x00\xc8", b"\x00\xcc")  # fmt: skip
_PACKED = (b"H\x01", b"j", b"t", b"\x93", b"\xcc\xc8", b"\x92", b"\xc4\x01", b"\xdb\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff", b"\xc4\x01\n", *_JSON)  # fmt: skip


def _stored(*lines: tuple[bytes, bytes]) -> bytes:
    return CODEC.encode(StoredResponse(201, lines, b'{"n":1}'))


_REDIS = (
    bytes.fromhex("1101010001000000000000e8030000000000e80300000000000004") + b"ownr\x01k",
    bytes.fromhex("11f9010001000000000000e8030000000000e8030000000000e8030000000004")
    + b'ownr\x01k\x05\x00["a"]\x02ff\x01\x00ejtrue',
)  # fmt: skip

TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target("key-field", key_field, (b'"abc"', b"8e03978e-40d5-43e8", b'"a\\"b\\\\";v=1;w=?1;x=:AA==:;y=%"a%c3%a9"', b"k" * 255), _FIELD),
        Target("key-check", key_check, (b"abc", b"8e03978e-40d5", "k\u00e9y".encode(), b"\xed\xa0\x80", b"k" * 255), _FIELD),
        Target("fingerprint", fingerprint, (b'application/json\x1e{"a":[1,2.50,"x"]}', b"multipart/form-data; boundary=b\x1e--b\r\nA: 1\r\n\r\nx\r\n--b--\r\n", b"application/x-www-form-urlencoded\x1eb=1&a=2&a=3"), _BODY),
        Target("json-body", json_body, (b'{"a":[1,2.50,"x",null,true],"b":{"c":-1e5}}', b"[[[]]]", b'"\\u00e9"', b"12345678901234567890"), _JSON),
        Target("request", whole_request, (b'/a/1\x1eid=k&x=%41\x1eidempotency-key:"k"\x1eauthorization:B\x1ecookie:s=1; t=2\x1econtent-type:application/json\x1e{"a":{"b":"k"}}', b"/b\x1e\x1econtent-length:10\x1e", b"/a/x\x1e\x1e"), (*_BODY, *_FIELD, b"idempotency-key:", b"x-key:", b"content-length:9", b"cookie:s=")),
        Target("recorder", recorder, (b'\x00\xc9content-type:application/json\x1eLocation:/1\x1eset-cookie:a=b\x1e{"n":1}', b"\x00\xccX:y\x1e", b"\x00\xc8content-length:5\x1ehello"), _LINES),
        Target("stored-response", stored_response, (_stored((b"content-type", b"application/json"), (b"etag", b'"e"')), _stored(), b'j{"a":1}'), (*_PACKED, *_LINES)),
        Target("result", result, (b'j{"a":[1,2.5,null]}', *(RESULTS.encode(v) for v in (b"x", (1, "a"), {1, 2}, Decimal("1.50"), uuid.UUID(int=7), {1: (b"y",)}))), _PACKED),
        Target("redis-record", redis_record, _REDIS, (b"\x00", b"\xff", b"\x01k", b'["a"]', b"\x05\x00")),
        Target("wire-requests", wire.requests, wire.REQUESTS, wire.WORDS),
        Target("wire-responses", wire.responses, wire.RESPONSES, wire.WORDS),
        Target("sql-record", sql_record, (b'\x04\x04["a","b"]', b"\x03\x03"), _JSON),
    )
}  # fmt: skip

DIFFERENTIAL = ("wire-requests", "wire-responses")
"""Two readers of one text: the proxy's guards against parsers of others."""
