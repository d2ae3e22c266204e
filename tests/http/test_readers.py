"""Two readers of one text: requests that have one fingerprint are one to every application, too.

Pairs are made of the same pieces: parameters that changed places, members in another order, multipart
bodies with other boundaries. Where the fingerprints are equal, the readers of frameworks, and models
of readers in other languages, must find the same in both. ``TWICESAFE_FUZZ=1000000`` tries that many.
"""

from __future__ import annotations

import email
import io
import json
import os
import random
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl, unquote_plus

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from starlette.datastructures import QueryParams
from werkzeug.formparser import FormDataParser

from twicesafe._core.http.fingerprint import canonical_print
from twicesafe._core.http.problems import RequestRefused
from twicesafe._core.http.rules import HttpRules, Looked
from twicesafe.http import HttpPolicy, HttpRequest, JsonMember, QueryParameter

MANY = settings(
    max_examples=int(os.environ.get("TWICESAFE_FUZZ", "150")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
FORM = "application/x-www-form-urlencoded"
DICE = st.integers(0, 1 << 32).map(random.Random)


def request(body: bytes, kind: str, query: bytes = b"") -> HttpRequest:
    return HttpRequest("POST", "/", b"/", query, [(b"content-type", kind.encode())], body)


# --- parameters --------------------------------------------------------------------------------


def grouped(pairs: Any, name: Callable[[str], str] = str) -> dict[str, list[str]]:
    """Each name and what it holds, in order: first and last are what most applications take."""
    found: dict[str, list[str]] = {}
    for key, value in pairs:
        found.setdefault(name(key), []).append(value)
    return found


def werkzeug_form(text: bytes) -> Any:
    _, form, _ = FormDataParser().parse(io.BytesIO(text), FORM, len(text), {})
    return form.to_dict(flat=False)


def without_case(text: bytes) -> Any:  # ASP.NET
    return grouped(parse_qsl(text.decode("latin-1"), keep_blank_values=True), str.casefold)


def decoded_twice(text: bytes) -> Any:
    return grouped(parse_qsl(text.decode("latin-1"), keep_blank_values=True), unquote_plus)


def by_semicolons(text: bytes) -> Any:  # Rack 2
    parts = [part.partition("=")[::2] for part in re.split("[&;]", text.decode("latin-1"))]
    return grouped((unquote_plus(name), value) for name, value in parts)


def nested(text: bytes) -> Any:
    """PHP: a[b] is in a, a dot or a blank in a name is an underscore, a NUL ends it."""
    found: dict[str, Any] = {}
    for key, value in parse_qsl(text.decode("latin-1"), keep_blank_values=True):
        name, bracket, rest = key.partition("\0")[0].lstrip(" ").partition("[")
        name = re.sub("[. ]", "_", name)
        if bracket and "]" in rest:
            inner = found.get(name)
            inner = inner if isinstance(inner, list) else []
            found[name] = [*inner, (rest.partition("]")[0], value)]
        else:
            found[name + ("_" + rest if bracket else "")] = value
    return found


def by_dots(text: bytes) -> Any:  # qs, Spring
    pairs = parse_qsl(text.decode("latin-1"), keep_blank_values=True)
    return grouped(((key.partition(".")[0], (key, value)) for key, value in pairs))


FORM_READERS: dict[str, Callable[[bytes], Any]] = {
    "urllib": lambda text: grouped(parse_qsl(text.decode("latin-1"), keep_blank_values=True)),
    "werkzeug": werkzeug_form,
    "starlette": lambda text: grouped(QueryParams(text).multi_items()),
    "without case": without_case,
    "decoded twice": decoded_twice,
    "semicolons": by_semicolons,
    "nested": nested,
    "dots": by_dots,
}
NAMES = ["a", "A", "%61", "%41", "%2561", "a.b", "a_b", "a+b", "a[b]", "a%5Bb%5D", "a[]", "a%00", "b", "b_c", "", "a;b", "é", "%c3%a9", "a["]  # fmt: skip
PARTS = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from(["=1", "=2", "=", "", "=1;a=3", "=%ff"])).map(
        "".join
    ),
    min_size=2,
    max_size=4,
)


@pytest.mark.item("F5", "F8", "D7")
@MANY
@given(PARTS, DICE)
def test_parameters_with_one_fingerprint_are_one_to_every_reader(parts: Any, dice: Any):
    turned = list(parts)
    dice.shuffle(turned)
    one, other = ("&".join(given).encode() for given in (parts, turned))
    is_one = canonical_print(request(one, FORM)) == canonical_print(request(other, FORM))
    query = [canonical_print(request(b"", "", text)) for text in (one, other)]
    assert is_one is (query[0] == query[1])
    event(f"one: {is_one and one != other}")
    for name, read in FORM_READERS.items() if is_one else ():
        assert read(one) == read(other), name


# --- JSON --------------------------------------------------------------------------------------


def first(pairs: list[tuple[str, Any]]) -> Any:
    return dict(reversed(pairs))


def last(pairs: list[tuple[str, Any]]) -> Any:
    return dict(pairs)


def no_case(pairs: list[tuple[str, Any]]) -> Any:  # Go, .NET
    return {name.casefold(): value for name, value in pairs}


def up_to_nul(pairs: list[tuple[str, Any]]) -> Any:
    return {name.partition("\0")[0]: value for name, value in pairs}


MEMBERS = st.recursive(
    st.sampled_from(["1", "1.0", '"1"', "true", "null"]),
    lambda inner: st.lists(
        st.tuples(st.sampled_from(["a", "A", "\\u0061", "a\\u0000", "b"]), inner), max_size=3
    ),
    max_leaves=6,
)


def written(value: Any, dice: Any) -> str:
    if isinstance(value, str):
        return value
    members = list(value)
    dice.shuffle(members)
    return "{" + ",".join(f'"{name}":{written(held, dice)}' for name, held in members) + "}"


@pytest.mark.item("F6", "F7", "D7")
@MANY
@given(MEMBERS, DICE)
def test_json_with_one_fingerprint_is_one_to_every_reader(value: Any, dice: Any):
    one, other = written(value, dice), written(value, dice)
    prints = [canonical_print(request(text.encode(), "application/json")) for text in (one, other)]
    event(f"one: {prints[0] == prints[1] and one != other}")
    for reader in (first, last, no_case, up_to_nul) if prints[0] == prints[1] else ():
        read = [repr(_sorted(json.loads(text, object_pairs_hook=reader))) for text in (one, other)]
        assert read[0] == read[1], reader


def _sorted(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return sorted((name, repr(_sorted(held))) for name, held in value.items())


# --- multipart ---------------------------------------------------------------------------------


def by_werkzeug(body: bytes, kind: str) -> Any:
    options = {"boundary": kind.partition("boundary=")[2]}
    parser = FormDataParser(silent=False)
    _, form, _ = parser.parse(io.BytesIO(body), "multipart/form-data", len(body), options)
    return form.to_dict(flat=False)


def by_email(body: bytes, kind: str) -> Any:
    """A lenient reader: bare LF is a line break, too."""
    message = email.message_from_bytes(b"Content-Type: " + kind.encode() + b"\n\n" + body)
    parts = message.get_payload()
    return parts if isinstance(parts, str) else [(p.items(), p.get_payload()) for p in parts]


def read_or_refused(read: Any, body: bytes, kind: str) -> Any:
    try:
        return read(body, kind)
    except Exception as error:
        return type(error).__name__


PIECES = st.lists(
    st.sampled_from(["1", "\n", "\r\n", "--x", "--y", "--", "\r\n\r\n", "\n\n", "Content-Disposition: form-data; name=b"]),
    max_size=6,
).map("".join)  # fmt: skip


@pytest.mark.item("F8", "D7")
@MANY
@given(st.lists(PIECES, min_size=1, max_size=2), st.booleans())
def test_parts_with_one_fingerprint_are_one_to_every_reader(contents: Any, moved: bool):
    texts = []
    for boundary in ("x", "y"):
        inside = [text.replace("--x", f"--{boundary}") if moved else text for text in contents]
        parts = [f'--{boundary}\r\nContent-Disposition: form-data; name="a"\r\n\r\n{text}\r\n' for text in inside]  # fmt: skip
        body = ("".join(parts) + f"--{boundary}--\r\n").encode()
        texts.append((body, f"multipart/form-data; boundary={boundary}"))
    one, other = (canonical_print(request(*text)) for text in texts)
    event(f"one: {one == other}")
    for read in (by_werkzeug, by_email) if one == other else ():
        assert read_or_refused(read, *texts[0]) == read_or_refused(read, *texts[1])


# --- keys --------------------------------------------------------------------------------------


@pytest.mark.item("O4", "K10")
@MANY
@given(st.lists(st.tuples(st.sampled_from(["id", "ID", "\\u0069d", "x"]), st.sampled_from(['"1"', "1", '"2"', "null", "1.0", "{}"])), max_size=3))  # fmt: skip
def test_the_id_that_a_key_is_made_of_is_the_one_that_every_reader_finds(members: Any):
    text = "{" + ",".join(f'"{name}":{value}' for name, value in members) + "}"
    rules = HttpRules(HttpPolicy(key_from=(JsonMember("id"),)))
    try:
        admission = rules.admit(request(text.encode(), "application/json"), Looked(None))
    except RequestRefused:
        return
    for reader in (first, last, no_case) if admission is not None else ():
        assert admission is not None
        found = json.loads(text, object_pairs_hook=reader)["id"]
        assert admission.key.value == (found if isinstance(found, str) else f"json:{found}")


@pytest.mark.item("O4", "K10")
@MANY
@given(PARTS)
def test_the_parameter_that_a_key_is_made_of_is_the_one_that_every_reader_finds(parts: Any):
    query = "&".join(parts).encode()
    rules = HttpRules(HttpPolicy(key_from=(QueryParameter("a"),)))
    asked = request(b"", "", query)
    try:
        looked = rules.look(asked)
    except RequestRefused:
        return
    for name in ("urllib", "starlette", "without case"):
        found = FORM_READERS[name](query)
        if looked is not None:
            assert found["a"] == [looked.key]
        elif name != "without case":
            assert "a" not in found
