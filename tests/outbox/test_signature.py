"""The signature of a web hook: what it covers, and what no sender can make its check do."""

from __future__ import annotations

import hashlib
import hmac
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twicesafe import ConfigurationError
from twicesafe.outbox.publishers._signature import as_secrets, sign
from twicesafe.outbox.publishers.webhook import WebhookPublisher, verify_signature

NOW = 1_700_000_000
MANY = settings(max_examples=int(os.environ.get("TWICESAFE_FUZZ", "300")), deadline=None)
PART = st.text(st.sampled_from("a.%2Eé,0"), max_size=5)


def header(secret: str = "s", id: str = "i", body: bytes = b"b", at: int = NOW) -> str:  # noqa: A002
    return sign(as_secrets(secret), at, id, body)


def fits(header: str, id: str = "i", body: bytes = b"b", secret: object = "s") -> bool:  # noqa: A002
    return verify_signature(secret, header, id, body, now=NOW)  # type: ignore[arg-type]


def test_it_is_what_the_page_says():
    made = hmac.new(b"s", b"1700000000.a%2Eb%25.body", hashlib.sha256).hexdigest()
    assert header("s", "a.b%", b"body") == f"t=1700000000,v1={made}"
    assert fits(header())


def test_a_signature_is_of_one_id_and_one_body():
    assert not fits(header(id="a", body=b"b.c"), "a.b", b"c")
    assert not fits(header(id="a.b", body=b"c"), "a", b"b.c")
    assert not fits(header(id="a%2Eb"), "a.b")
    assert fits(header(id="a.b", body=b"c"), "a.b", b"c")


@MANY
@given(PART, PART, PART, PART)
def test_no_other_id_and_body_have_it(id: str, body: str, id2: str, body2: str):  # noqa: A002
    made = header(id=id, body=body.encode())
    assert fits(made, id2, body2.encode()) is ((id, body) == (id2, body2))


@pytest.mark.parametrize(
    "bad",
    ["", "t", "t=", "v1=", "é", "t=é,v1=é", "t=1700000000,v1=\u00e9", "t=1700000000,v1=\ud800", "\0"]
    + [f"t={time},v1={{}}" for time in ("9" * 5000, "9" * 400, "-1", "+1700000000", "1_700_000_000",
       "01700000000", " 1700000000", "1.7e9", "nan", "inf", "\u0661\u0667", "")],
)  # fmt: skip
def test_nothing_in_a_header_raises(bad: str):
    assert not fits(bad.format(header().partition("v1=")[2]))


@MANY
@given(st.text())
def test_no_text_at_all_raises(text: str):
    for bad in (text, f"t={text},v1={'0' * 64}", f"t={NOW},v1={text}"):
        assert not fits(bad)


def test_a_time_that_is_given_twice_is_refused():
    """As when the header comes in two lines, which servers join."""
    old, good = header(at=NOW - 9999), header()
    for twice in (f"{old},{good}", f"{good},{old}", f"{good},{good}", f"{good}, t={NOW}"):
        assert not fits(twice)


def test_a_signature_from_another_time_is_refused():
    for late in (-301, 301, -10_000, 10_000):
        assert not fits(header(at=NOW + late))
    for in_time in (-300, -1, 1, 300):
        assert fits(header(at=NOW + in_time))


def test_one_of_several_signatures_is_enough():
    good = header("new")
    time, _, made = good.partition(",")
    for several in (
        f"{good},v1={'0' * 64}",
        f"{time},v1={'0' * 64},{made}",
        f"{time}, {made},v0=x",
    ):
        assert fits(several, secret="new")
    assert fits(good, secret=["new", "old"])
    assert fits(good, secret=("old", b"new"))
    assert not fits(good, secret=["old", "older"])
    both = sign(as_secrets(["new", "old"]), NOW, "i", b"b")
    assert fits(both, secret="new")
    assert fits(both, secret="old")
    assert not fits(both, secret="older")


def test_a_header_that_is_too_long_is_not_looked_at():
    assert fits(header() + ",x" * 100)
    assert not fits(header() + ",v1=" + "0" * 64 + ",x" * 5000)


@pytest.mark.parametrize("empty", ["", b"", [], [""], ["s", ""], (b"",)])
def test_an_empty_secret_is_refused_on_both_sides(empty: object):
    with pytest.raises(ConfigurationError, match="empty"):
        fits(header(), secret=empty)
    with pytest.raises(ConfigurationError, match="empty"):
        WebhookPublisher("http://x", secret=empty)  # type: ignore[arg-type]


def test_a_secret_is_replaced_by_two_variables(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NEW", "new")
    monkeypatch.setenv("OLD", "old")
    publisher = WebhookPublisher.open("http://x?secret_env=NEW,OLD")
    assert publisher._secrets == (b"new", b"old")
    monkeypatch.setenv("OLD", "")
    with pytest.raises(ConfigurationError, match="secret_env=OLD"):
        WebhookPublisher.open("http://x?secret_env=NEW,OLD")
