"""The checklist of the HTTP layer, and the page that says which test holds which item.

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
        "K2": "An RFC 9651 String; the key is its unescaped content.",
        "K3": "A bare value is accepted too; `strict` refuses it.",
        "K4": "With and without quotes it is the same key.",
        "K5": "Parameters after the String are parsed and ignored.",
        "K6": "An empty key is 400, never treated as missing.",
        "K7": "1 to 255 characters, never cut; the limit is a setting.",
        "K8": "Octets outside printable ASCII are 400.",
        "K9": "A malformed field is 400, never ignored.",
        "K10": "A field that is sent twice is 400, also when a server has joined the lines; so is a webhook's id.",
        "K11": "Keys are opaque and case-sensitive.",
        "K12": "Scope and key are hashed with their lengths: no two pairs can run together, and no character is special.",
        "K13": "Your own check of the key; the error tells the client the format.",
        "K14": "A refused key leaves no record.",
        "K15": "Keys that browsers add are like any others.",
    },
    "Which requests": {
        "A1": "POST and PATCH are protected.",
        "A2": "Safe methods pass, with any key, and are never answered from the store.",
        "A3": "PUT and DELETE pass unless `methods` names them.",
        "A4": "Without a key a request runs each time.",
        "A5": "A required key that is missing is 400: for all, by route or by method.",
        "A6": "A CORS preflight needs no key.",
        "A7": "Routes are included and excluded; websockets and lifespan are untouched.",
        "A8": "Request and first response pass unchanged.",
        "A9": "The proxy itself never retries, and never follows redirects.",
        "A10": "The handler sees the key, unless the policy hides it.",
    },
    "Fingerprint": {
        "F1": "Method, path, query, media type with the parameters that change its meaning, and the whole body.",
        "F2": "Another request under a known key is neither run nor answered: 422.",
        "F3": "A mismatch does not change the record.",
        "F4": "A request with another path, method or query never gets this response.",
        "F5": "The order of query parameters counts only within a name, in any spelling of it.",
        "F6": "JSON is compared by value; a body that does not parse, or has a member twice, is compared by octets.",
        "F7": "Different values never count as equal: numbers are compared as written.",
        "F8": "Multipart bodies are compared by their parts, forms by their parameters.",
        "F9": "A body over the limit is 413, before anything runs.",
        "F10": "Other fields and framing do not count.",
        "F11": "A body with a Content-Encoding is compared as it was sent, together with that field.",
        "F12": "The compared parts can be chosen; the record stores the scheme.",
    },
    "Replay": {
        "R1": "The same status and octets, any number of times.",
        "R2": "The usual end-to-end fields are kept, and those that `keep_headers` names.",
        "R3": "Repeated field lines stay separate and in order.",
        "R4": "`Idempotent-Replayed: true`, on replays only.",
        "R5": "No hop-by-hop fields, one Date, one Server, one Content-Length, no Age.",
        "R6": "Two Set-Cookie fields stay two; all or none are replayed, by default none.",
        "R7": "204 and 304 without content; redirects are not followed.",
        "R8": "Stored octets and their Content-Encoding belong together.",
        "R9": "Another Accept gets the stored representation.",
        "R10": "A response over the limit is delivered whole but not stored; a repeat gets an error that says so.",
        "R11": "With Origin, the mark is exposed to scripts.",
        "R12": "A hook can return the current state instead of the first response.",
    },
    "Concurrency": {
        "C1": "Fifty requests at once: one effect, one result.",
        "C2": "A repeat of running work gets 409 at once, or waits for a limited time and gets the replay.",
        "C3": "The 409 says when to come back.",
        "C4": "Another payload during execution is 422.",
        "C5": "Different keys do not wait for each other.",
        "C6": "A live request outlasts its lease and keeps its key.",
    },
    "Outcomes": {
        "E1": "2xx and 3xx are stored.",
        "E2": "4xx are stored, except those that mean 'not executed'.",
        "E3": "5xx are stored, except 503.",
        "E4": "An exception leaves the outcome unknown: the key is held, and every repeat gets that answer.",
        "E5": "A client that goes away neither cancels the handler nor loses its result.",
        "E6": "An incomplete upload is not run and leaves the key unused.",
        "E7": "A response that is cut is cut for the client too; it is not stored, and the handler does not run again.",
        "E8": "Records survive a restart; requests that were in flight are held.",
        "E9": "If the store is unreachable, the answer is 503 and nothing runs, unless a setting allows it.",
        "E10": "The proxy gives the key back if nothing was sent upstream.",
    },
    "Scope": {
        "S1": "Keys belong to the principal: by default a hash of Authorization, of all its lines.",
        "S2": "Requests without credentials share one scope.",
        "S3": "Another principal learns nothing.",
        "S4": "Your own scope: tenant, subject, cookie.",
        "S5": "Logins outside the middleware run before a replay; the refusals of those inside are not stored.",
        "S6": "Redaction, your own codec, keyed hashes; none of it is logged.",
    },
    "Streaming": {
        "T1": "A response in pieces is delivered completely and replayed.",
        "T2": "It is recorded before its end is sent.",
        "T3": "Event streams are not held back, not buffered without end, and not run twice.",
    },
    "Problems": {
        "P1": "`application/problem+json`, with Content-Language.",
        "P2": "One stable type per case.",
        "P3": "A link to documentation; the base is a setting.",
        "P4": "`Cache-Control: no-store`.",
        "P5": "No part of the key or of a stored body is quoted.",
        "P6": "`retryable` says whether the same request may succeed later.",
    },
    "Proxy": {
        "H1": "Hop-by-hop fields are stripped.",
        "H2": "Via and Forwarded are set.",
        "H3": "Expect: 100-continue, answered by the proxy itself.",
        "H4": "1xx are not final; HTTP/1.0 ends at a clean close.",
        "H5": "Trailers are dropped on replay.",
    },
    "Operation": {
        "O1": "Retention is a setting; after it a key is new.",
        "O2": "A store that only one process can use says so.",
        "O3": "Observers receive every outcome; operators resolve unknown ones.",
        "O4": "Keys from query, JSON members and webhook headers.",
        "O5": "425 is left to the handler; the middleware does not use it.",
    },
    "Attacks": {
        "D1": "Another principal's key, with any body, gets its own run, never the other's answer.",
        "D4": "A revoked token gets no stored answer: use a login outside the middleware, or `on_replay`.",
        "D5": "Cookies, credentials, rate limits, request ids and hop-by-hop fields are not replayed.",
        "D6": "CR, LF and NUL in a stored field are refused when written and when read; nothing runs.",
        "D7": 'JSON tricks: duplicate members, `1`, `1.0`, `true`, `"1"`, NaN, NFC and NFD stay different.',
        "D11": "Huge keys and bodies, many fields, keys and waiters are refused early, or bounded.",
        "D12": "A mebibyte of hostile input is read in linear time.",
        "D14": "No key, two, empty, quoted, not ASCII, on GET: each has its answer.",
        "D15": "The proxy passes on nothing that can be read in two ways: 400, and the connection ends.",
        "D16": "After errors, cuts and disconnects, no incomplete response is stored as complete.",
        "D21": "JSON of any depth and numbers of any length cause no error in the middleware.",
        "D24": "A million mutated inputs to each reader: no crash, no hang.",
    },
}  # fmt: skip

ENDINGS = [
    ("is complete", "done", "the response", "the replay"),
    ("is complete, and its status is in `release`", "released", "the response", "a new run"),
    ("is complete, but larger than `max_result`", "done, not kept", "the response", "`result-not-kept`"),
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
    "A8": "WSGI servers decode the path; the layer sees what the application sees; behind the proxy an empty query loses its `?`",
    "D5": "an allow-list; `WWW-Authenticate` is on it (R2), but 401 is not kept",
    "D11": "quotas of keys per principal and slow bodies belong to a rate limiter and the server, outside",
    "E7": "an HTTP/1.0 response without a length ends where its connection does: no client can tell",
    "F12": "there is one scheme so far",
    "H4": "over TLS every close counts as clean",
    "O1": "the bare key is not kept longer than its response",
    "O3": "a release has no separate event",
    "P5": "the layer answers no HEAD: safe methods pass",
    "S6": "encryption needs your own codec",
    "T2": "if the store is away at the end, the client gets its answer and a retry `outcome-unknown`",
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
    generate = load()
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

The same for ASGI, WSGI, Django and the proxy. The store records it before the end of the response is sent.

{generate.table("the response", "the key is", "the client gets", "a repeat gets", rows=ENDINGS)}
On a route where `on_unknown` is `rerun`, a key is never held: the attempt fails and a repeat runs. A short response fails its
attempt before its end is sent, so a client that retries at once does not get 409.

## Checklist

What the middleware promises, and the tests in `tests/http` that check it. Each test runs on ASGI, on WSGI and behind the proxy,
unless it is about one of them.
"""
    held = marks()
    for section, items in SECTIONS.items():
        rows = [(name, said, _status(name, held)) for name, said in items.items()]
        text += f"\n### {section}\n\n{generate.table('item', 'promise', 'tests', rows=rows)}"
    return text


def _status(name: str, held: dict[str, list[str]]) -> str:
    tests = "<br>".join(f"`{test}`" for test in held.get(name, ()))
    limit = f"<br>Limit: {LIMITS[name]}." if name in LIMITS else ""
    return f"{tests}{limit}" if tests else f"not held: {LATER[name]}"


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
