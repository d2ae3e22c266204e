"""The checklist of the HTTP layer, and the page that says which test checks which item.

    python -m tests.http.items        writes docs/reference/http.md

Status and test names come from the marks ``@pytest.mark.item("K2")``; settings and cases from the code.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from tests.house.test_reference import load
from twicesafe._core.http.policy import HttpPolicy
from twicesafe._core.http.problems import CASES

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "http.md"

SECTIONS: dict[str, dict[str, str]] = {
    "Key": {
        "K1": "The field is `Idempotency-Key`, case-insensitive; name and aliases are settings.",
        "K2": "The field is an RFC 9651 String; the key is its unescaped content.",
        "K3": "A value without quotes is accepted too; `strict` refuses it.",
        "K4": "A value with quotes and the same value without are one key.",
        "K5": "Parameters after the String are parsed and ignored.",
        "K6": "An empty key gets 400; it does not count as missing.",
        "K7": "A key has 1 to 255 characters and is never cut; the limit is a setting.",
        "K8": "A key with octets outside printable ASCII gets 400.",
        "K9": "A malformed field gets 400; it is never ignored.",
        "K10": "A field that is sent twice gets 400, even if a server has joined the lines. The same holds for a webhook's id.",
        "K11": "Keys are opaque and case-sensitive.",
        "K12": "Scope and key are hashed with their lengths, so no two pairs can be confused, and no character is special.",
        "K13": "You can check keys yourself; the error tells the client the format.",
        "K14": "A refused key leaves no record.",
        "K15": "Keys that browsers add are treated like any others.",
    },
    "Which requests": {
        "A1": "POST and PATCH are protected.",
        "A2": "Safe methods pass, with any key, and are never answered from the store.",
        "A3": "PUT and DELETE pass unless `methods` names them.",
        "A4": "A request without a key runs each time.",
        "A5": "A missing key gets 400 where one is required: everywhere, by route or by method.",
        "A6": "A CORS preflight needs no key.",
        "A7": "Routes can be included and excluded; websockets and lifespan events pass unchanged.",
        "A8": "The request and its first response pass unchanged.",
        "A9": "The proxy itself never retries, and never follows redirects.",
        "A10": "The handler sees the key, unless the policy hides it.",
    },
    "Fingerprint": {
        "F1": "It covers method, path, query, media type (with the parameters that change its meaning) and the whole body.",
        "F2": "Another request under a known key gets 422; it neither runs nor gets the stored answer.",
        "F3": "A mismatch does not change the record.",
        "F4": "A request with another path, method or query never gets this response.",
        "F5": "The order of query parameters matters only among those with the same name.",
        "F6": "JSON is compared by value; a body that does not parse, or has a member twice, is compared by octets.",
        "F7": "Different values never count as equal: numbers are compared as written.",
        "F8": "Multipart bodies are compared by their parts, forms by their parameters.",
        "F9": "A body over the limit gets 413 before anything runs.",
        "F10": "Other header fields and the framing do not matter.",
        "F11": "A body with a Content-Encoding is compared as it was sent, together with that field.",
        "F12": "You can choose what is compared; the record stores the scheme.",
    },
    "Replay": {
        "R1": "A replay has the same status and octets, any number of times.",
        "R2": "The usual end-to-end fields are kept, and those that `keep_headers` names.",
        "R3": "Repeated field lines stay separate and in order.",
        "R4": "Replays, and only replays, have `Idempotent-Replayed: true`.",
        "R5": "A replay has no hop-by-hop fields, one Date, one Server, one Content-Length and no Age.",
        "R6": "Two Set-Cookie fields stay two; all or none are replayed, by default none.",
        "R7": "204 and 304 have no content; redirects are not followed.",
        "R8": "Stored octets and their Content-Encoding belong together.",
        "R9": "A repeat with another Accept gets the stored representation.",
        "R10": "A response over the limit is delivered whole but not stored; a repeat gets an error that says so.",
        "R11": "If the request has an Origin, scripts can read the replay marker.",
        "R12": "A hook can return the current state instead of the first response.",
    },
    "Concurrency": {
        "C1": "Fifty requests at once have one effect and one result.",
        "C2": "A repeat of running work gets 409 at once, or waits for a limited time and gets the replay.",
        "C3": "The 409 says when to retry.",
        "C4": "Another payload while the first request runs gets 422.",
        "C5": "Different keys do not wait for each other.",
        "C6": "A request that runs longer than its lease keeps its key.",
    },
    "Outcomes": {
        "E1": "2xx and 3xx are stored.",
        "E2": "4xx are stored, except those that mean 'not executed'.",
        "E3": "5xx are stored, except 503.",
        "E4": "An exception leaves the outcome unknown: the key is held, and every repeat gets that answer.",
        "E5": "A client that disconnects neither cancels the handler nor loses its result.",
        "E6": "An incomplete upload does not run and leaves the key unused.",
        "E7": "A cut response is cut for the client too. It is not stored, and the handler does not run again.",
        "E8": "Records survive a restart; requests that were in flight are held.",
        "E9": "If the store is unreachable, the answer is 503 and nothing runs, unless a setting allows it.",
        "E10": "The proxy releases the key if nothing was sent to the service.",
    },
    "Scope": {
        "S1": "Keys belong to the caller: by default to a hash of all its Authorization lines.",
        "S2": "Requests without credentials share one scope.",
        "S3": "Another caller learns nothing about them.",
        "S4": "You can set the scope: tenant, subject, cookie.",
        "S5": "A login outside the middleware runs before a replay; the 401 and 403 of one inside are not stored.",
        "S6": "Responses can be redacted and encoded by your codec, credentials are hashed with a secret, and none of it is logged.",
    },
    "Streaming": {
        "T1": "A streamed response is delivered completely and replayed.",
        "T2": "It is recorded before its end is sent.",
        "T3": "Event streams are neither delayed, nor buffered without limit, nor run twice.",
    },
    "Problems": {
        "P1": "Errors are `application/problem+json`, with Content-Language.",
        "P2": "Each case has one stable type.",
        "P3": "Each has a link to documentation; the base is a setting.",
        "P4": "Each has `Cache-Control: no-store`.",
        "P5": "None quotes any part of the key or of a stored body.",
        "P6": "`retryable` says whether the same request may succeed later.",
    },
    "Proxy": {
        "H1": "Hop-by-hop fields are stripped.",
        "H2": "Via and Forwarded are set.",
        "H3": "The proxy itself answers `Expect: 100-continue`.",
        "H4": "1xx responses are not final; an HTTP/1.0 response ends at a clean close.",
        "H5": "Trailers are dropped on replay.",
    },
    "Operation": {
        "O1": "The retention is a setting; after it a key is new again.",
        "O2": "A store that only one process can use logs a warning.",
        "O3": "Observers receive every outcome; operators resolve unknown ones.",
        "O4": "Keys can come from the query, JSON members and webhook headers.",
        "O5": "425 is left to the handler; the middleware does not use it.",
    },
    "Attacks": {
        "D1": "Another caller who sends the same key, with any body, gets a separate run, never the first caller's answer.",
        "D4": "A revoked token gets no stored answer: use a login outside the middleware, or `on_replay`.",
        "D5": "Cookies, credentials, rate limits, request ids and hop-by-hop fields are not replayed.",
        "D6": "CR, LF and NUL in a stored field are refused when written and when read; nothing runs.",
        "D7": 'JSON tricks: duplicate members, `1`, `1.0`, `true`, `"1"`, NaN, NFC and NFD stay different.',
        "D11": "Huge keys and bodies, and large numbers of fields, keys and waiters, are limited or refused early.",
        "D12": "A mebibyte of hostile input is read in linear time.",
        "D14": "No key, two keys, an empty, quoted or non-ASCII key, a key on GET: each case has its own answer.",
        "D15": "The proxy passes on nothing that can be read in two ways: 400, and the connection ends.",
        "D16": "After errors, cuts and disconnects, no incomplete response is stored as complete.",
        "D21": "JSON of any depth and numbers of any length cause no error in the middleware.",
        "D24": "A million mutated inputs neither crash nor block any parser.",
    },
}  # fmt: skip

ENDINGS = [
    ("is complete", "done", "the response", "the replay"),
    ("is complete, and its status is in `release`", "released", "the response", "a new run"),
    ("is complete, but larger than `max_result_bytes`", "done, not kept", "the response", "`result-not-kept`"),
    ("is cut: the handler raised, ended early, or sent less than it announced", "held",
     "`outcome-unknown` or a cut response", "`outcome-unknown`"),
    ("is still streaming `linger` seconds after the client disconnected", "done, not kept", "nothing",
     "`result-not-kept`"),
    ("is cut because the server stopped it after a disconnect (async streams of Django)", "held",
     "nothing", "`outcome-unknown`"),
]  # fmt: skip
"""The table of `_core/http/flow.py`, as a user sees it. Same for ASGI, WSGI, Django and the proxy."""

LATER: dict[str, str] = {}

LIMITS: dict[str, str] = {
    "A8": "WSGI servers decode the path, so the middleware sees the decoded one; the proxy drops the `?` of an empty query",
    "D5": "`WWW-Authenticate` would be kept (R2), but a 401 is not stored",
    "D11": "limits on keys per principal and on slow uploads belong in a rate limiter and the server",
    "E6": "Granian does not tell an HTTP/2 upload without Content-Length that was reset with NO_ERROR from a whole one",
    "E7": "a response without a length ends with its connection; without TLS, a cut looks the same as that end",
    "F12": "there is one scheme so far",
    "O1": "a key is not remembered longer than its response",
    "O3": "a release has no separate event",
    "P5": "the middleware never answers HEAD, because safe methods pass",
    "S6": "encryption needs a key ring in the receiver's policy",
    "T2": "if the store is unreachable at the end, the client gets its answer, and a retry gets `outcome-unknown`",
}


def marks() -> dict[str, list[str]]:
    """Which tests hold which item, in the order of files and lines."""
    found: dict[str, list[str]] = {}
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        for test, ids in _marked(ast.parse(path.read_text("utf-8"))):
            for item in ids:
                found.setdefault(item, []).append(f"{path.stem}::{test}")
    return found


def _marked(tree: ast.Module) -> Iterator[tuple[str, list[str]]]:
    for node in tree.body:
        for mark in getattr(node, "decorator_list", ()):
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.item":
                assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                yield node.name, [ast.literal_eval(word) for word in mark.args]


def page() -> str:
    generate = load("generate")
    notes = generate.notes_of(HttpPolicy)
    settings = [
        (generate.code(field.name), generate.code(_shown(field.default)), notes[field.name])
        for field in fields(HttpPolicy)
    ]
    cases = [
        (generate.code(name), str(case.status), "yes" if case.retryable else "no", case.title)
        for name, case in CASES.items()
    ]
    text = f"""<!-- Made by `python -m tests.http.items` from code and tests: run it again. -->

# HTTP

How to use it: [Protect an HTTP API](../how-to/http.md).

## Settings

{generate.table("setting", "default", "meaning", rows=settings)}
## Problem types

The `type` of a problem document is `problem_base` followed by one of these.

{generate.table("case", "status", "retryable", "title", rows=cases)}
## How a request ends

This is the same for ASGI, WSGI, Django and the proxy. The store records the end of a key before the last bytes of the response are
sent.

{generate.table("the response", "the key is", "the client gets", "a repeat gets", rows=ENDINGS)}
On a route where `takeover` is `"retry"`, a key is never held: the attempt fails, and a repeat runs. The attempt ends before the last
bytes are sent, so a client that retries at once does not get 409.

## Checklist

What the middleware promises, and the tests in `tests/http` that check it. Tests that are not about one of them run on ASGI, on WSGI
and behind the proxy.
"""
    held = marks()
    for section, items in SECTIONS.items():
        rows = [(name, said, _status(name, held)) for name, said in items.items()]
        text += f"\n### {section}\n\n{generate.table('item', 'promise', 'tests', rows=rows)}"
    return text


def _status(name: str, held: dict[str, list[str]]) -> str:
    tests = load("generate").folded(held.get(name, []))
    limit = f"<br>Limit: {LIMITS[name]}." if name in LIMITS else ""
    return f"{tests}{limit}" if tests else f"not tested: {LATER[name]}"


def _shown(default: object) -> str:
    if isinstance(default, frozenset):
        return "{" + ", ".join(repr(item) for item in sorted(default)) + "}"
    return (
        type(default).__name__ + "()"
        if hasattr(default, "decode") and not isinstance(default, bytes)
        else repr(default)
    )


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
