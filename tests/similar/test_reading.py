"""What counts as the same value, what counts as prose, and what a hostile text cannot do."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twicesafe._core.similarity.reading import MAX_CHARACTERS, likeness, read_request
from twicesafe._core.similarity.words import number_of, read_text


def alike(one: object, other: object) -> float | None:
    """The score of two requests; None: their values differ."""
    first, second = read_request(one), read_request(other)
    assert first is not None
    assert second is not None
    return likeness(first, second) if first.values == second.values else None


SAME_VALUES = [
    ("pay €1,250.00", "pay 1250 EUR"),
    ("pay $20", "pay 20 dollars"),
    ("pay USD 20.50", "pay 20.5 usd"),
    ("pay 1.250.000,50 eur", "pay 1,250,000.50 eur"),
    ("pay 12,5 eur", "pay 12.50 eur"),
    ("pay 1'250 chf", "pay 1250 chf"),
    ("raise it by 5%", "raise it by five percent"),
    ("meet on 17 Nov 2026", "meet on 2026-11-17"),
    ("meet on November 17th, 2026", "meet on 17.11.2026"),
    ("meet on the 17th of May", "meet on May 17"),
    ("order two chairs", "order 2 chairs"),
    ("20 EUR for invoice 77", "invoice 77, 20 EUR"),  # each kind has its own order
    ("pay 1\u200b00 eur", "pay 100 eur"),  # an invisible character
    ("pay １００ eur", "pay 100 eur"),  # full-width digits
    ("pay ١٠٠ eur", "pay 100 eur"),  # Arabic digits
    ("pay −5 eur", "pay -5 eur"),
]


@pytest.mark.parametrize("one, other", SAME_VALUES)
def test_equal_values_in_other_forms_are_equal(one: str, other: str):
    assert alike(one, other) is not None


OTHER_VALUES = [
    ("pay 100 eur", "pay 1000 eur"),
    ("pay 100 eur", "pay 100 usd"),
    ("pay 100 eur", "pay -100 eur"),
    ("pay 100 eur", "pay 100.01 eur"),
    ("pay 1.000 eur", "pay 1 eur"),  # can be read in two ways
    ("pay 1.000 eur", "pay 1000 eur"),
    ("meet on 3/4/2026", "meet on 2026-04-03"),
    ("account 007", "account 7"),
    ("invoice INV-77", "invoice INV-78"),
    ("invoice 77", "invoice 77 77"),
    ("from account 1 to account 2", "from account 2 to account 1"),
    ("pay 10² eur", "pay 102 eur"),  # a superscript
    ("pay ① eur", "pay 1 eur"),
    ("pay it", "do not pay it"),
    ("pay it", "don't pay it"),
    ("pay it today", "pay it tomorrow"),
    ("pay next month", "pay last month"),
    ("one chair", "all chair"),
    ("write to ann@a.example1", "write to ann@b.example1"),
    ("see https://a.example/1", "see https://a.example/2"),
]


@pytest.mark.parametrize("one, other", OTHER_VALUES)
def test_other_values_are_never_alike(one: str, other: str):
    assert alike(one, other) is None


def test_prose_may_differ_a_little():
    score = alike("Pay the invoices of Acme now", "please pay the invoice of Acme")
    assert score is not None
    assert 0.4 < score < 1.0
    assert alike("pay the invoice", "cancel meetings of the board") == 0.0


def test_names_must_be_in_both_texts_in_the_same_order():
    long = " because the goods arrived in good condition and the delivery note was signed"
    assert alike(f"send 5 eur to Alice{long}", f"send 5 eur to Bob{long}") == 0.0
    assert alike(f"move 5 eur from Ann to Bob{long}", f"move 5 eur from Bob to Ann{long}") == 0.0
    lost_its_capital = alike(f"send 5 eur to Alice{long}", f"send 5 eur to alice{long}")
    assert lost_its_capital == 1.0
    assert alike(f"send it to Alice{long}".upper(), f"send it to Alice{long}") == 1.0


@dataclass
class Order:
    to: str
    cents: Any
    memo: str = "for the chairs"


def test_data_is_compared_field_by_field():
    assert alike(Order("acct_1", 100), Order("acct_1", Decimal("100.0"))) == 1.0
    assert alike(Order("acct_1", 100), Order("acct_1", "100")) is None  # another type
    assert alike(Order("acct_1", 100), Order("acct_2", 100)) is None
    assert alike({"a": 1, "b": 2}, {"a": 2, "b": 1}) is None
    assert alike({"a": 1, "b": 2}, {"b": 2, "a": 1}) == 1.0
    assert alike({"action": "approve"}, {"action": "reject"}) is None
    assert alike({"a": [1, 2]}, {"a": [2, 1]}) is None
    other_person = alike(
        {"to": "ann lee", "memo": "x y " * 50}, {"to": "bob kay", "memo": "x y " * 50}
    )
    assert other_person == 0.0  # the least similar field counts


def test_values_without_parts():
    noon = datetime(2026, 11, 17, 12, tzinfo=UTC)
    later = noon.astimezone(timezone(timedelta(hours=2)))
    assert alike({"at": noon}, {"at": later}) == 1.0
    assert alike({"at": noon}, {"at": noon.replace(tzinfo=None)}) is None
    for one, other in [
        (None, False), (True, 1), (b"a", b"b"), (uuid.UUID(int=1), uuid.UUID(int=2)), (1.5, 1.25),
        (date(2026, 1, 1), date(2026, 1, 2)), (float("nan"), float("inf")), (10**40, 10**40 + 1),
        (Decimal("1e999999"), Decimal("1e999998")), (-1, 1), (0.1, Decimal("0.10000000000000001")),
    ]:  # fmt: skip
        assert alike({"v": one}, {"v": other}) is None
        assert alike({"v": one}, {"v": one}) == 1.0


@pytest.mark.parametrize("request_", ["", "  ", "please do it", {}, [], "a" * (MAX_CHARACTERS + 1), {"a": object()}, {"a": [1] * 1001}, {"a": 1 << 5000}])  # fmt: skip
def test_what_is_empty_too_large_or_unknown_is_not_compared(request_: object):
    assert read_request(request_) is None


def test_what_contains_itself_or_is_very_deep_is_not_compared():
    circle: list[Any] = []
    circle.append(circle)
    deep: Any = 1
    for _ in range(10_000):
        deep = [deep]
    assert read_request(circle) is None
    assert read_request(deep) is None


def test_equal_amounts_are_equal_whatever_their_type():
    for other in (100.0, Decimal(100), Decimal("100.00"), Decimal("1e2")):
        assert alike({"v": 100}, {"v": other}) == 1.0
    assert alike({"v": 0}, {"v": Decimal("-0.00")}) == 1.0


@pytest.mark.attack("D12")
@pytest.mark.parametrize("piece", ["a-", "1,", "'1", "1.1", "1'111", ".1111", "111,", "n't", "€", "-1", "1-", "A.", "\u0301", "ﷺ"])  # fmt: skip
def test_a_hostile_text_costs_no_more_than_its_length(piece: str):
    """Counted, not timed: the pattern reads each character a bounded number of times, so it finds at most as much
    as there is text. (One of these characters becomes 18 others.)"""
    text = (piece * MAX_CHARACTERS)[:MAX_CHARACTERS]
    read = read_text(text)
    assert sum(map(len, read.values)) + len(read.prose) <= 18 * len(text)


@given(st.text(max_size=60))
def test_any_text_is_like_itself_in_any_unicode_form(text: str):
    reading = read_request({"memo": text + " end"})
    assert reading is not None
    assert likeness(reading, reading) == 1.0
    again = read_request({"memo": text + " end"})
    assert again == reading


@given(st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=0, max_value=10**9))
def test_every_way_to_write_a_number_is_one_value(number: Decimal):
    plain = number_of(f"{number:.2f}")
    assert Decimal(plain) == number
    assert number_of(f"{number:,.2f}") == plain
    dotted = f"{number:,.2f}".translate(str.maketrans(",.", ".,"))
    assert number_of(dotted) == plain


def test_a_long_text_is_estimated_and_a_short_one_is_exact():
    words = [f"w{letter}{other}x" for letter in "abcdefghij" for other in "abcdefghijklmnopqrst"]
    half = " ".join(words[:100] + ["zz" + word for word in words[100:]])
    score = alike(" ".join(words), half)
    assert score is not None
    assert 0.2 < score < 0.55
