"""Keys: no two different operations ever meet, and what does not fit is refused, never changed."""

from __future__ import annotations

import copy
import enum
import pickle
import unicodedata
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twicesafe import InvalidKeyError, Key, MissingKeyError
from twicesafe._values.keys import MAX_KEY_BYTES, MAX_SCOPE_PARTS, as_key

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
scopes = st.lists(texts, max_size=4).map(tuple)


@given(scopes, texts, scopes, texts)
def test_equal_exactly_when_scope_and_value_are(
    scope: tuple[str, ...], value: str, scope2: tuple[str, ...], value2: str
) -> None:
    one, two = Key(value, scope), Key(value2, scope2)
    same = (scope, value) == (scope2, value2)
    assert (one == two) is same
    assert (one.id == two.id) is same
    assert Key(value, scope) == one


@given(st.lists(texts, min_size=2, max_size=5), st.data())
def test_moving_a_boundary_makes_another_key(parts: list[str], data: st.DataObject) -> None:
    """The same characters, cut elsewhere."""
    whole = "".join(parts)
    cut = data.draw(st.integers(1, len(whole) - 1))
    glued = Key(whole[cut:], scope=(whole[:cut],))
    original = Key(parts[-1], scope=tuple(parts[:-1]))
    assert (glued == original) is (parts == [whole[:cut], whole[cut:]])


@pytest.mark.parametrize(
    "one, two",
    [
        (Key("bc", ("a",)), Key("c", ("ab",))),
        (Key("a\0b"), Key("b", ("a",))),
        (Key("\0"), Key("\0\0")),
        (Key("abc"), Key("ABC")),
        (Key("abc"), Key("abc ")),
        (Key(unicodedata.normalize("NFC", "é")), Key(unicodedata.normalize("NFD", "é"))),
        (Key("👍"), Key("👍🏽")),
        (Key("b", ("a",)), Key("a", ("b",))),
        (Key("x", ("a", "b")), Key("x", ("ab",))),
        (Key("a"), Key("a", ("a",))),
    ],
)
def test_look_alikes_differ(one: Key, two: Key) -> None:
    assert one != two
    assert one.id != two.id
    assert len(one.id) == 32


def test_limits_are_bytes_and_named() -> None:
    assert MAX_KEY_BYTES == 255
    assert Key("x" * 255).value == "x" * 255
    assert Key("é" * 127).value == "é" * 127
    limits = dict.fromkeys(["x" * 256, "é" * 128, "👍" * 64], "at most 255 bytes")
    for value, limit in {"": "must not be empty", **limits}.items():
        with pytest.raises(InvalidKeyError, match=f"key .*{limit}"):
            Key(value)
        with pytest.raises(InvalidKeyError, match=f"scope part .*{limit}"):
            Key("k", scope=(value,))
        with pytest.raises(InvalidKeyError, match=f"step .*{limit}"):
            Key("k").derive(value)
    assert len(Key("k", ["p"] * MAX_SCOPE_PARTS).scope) == 8
    with pytest.raises(InvalidKeyError, match="at most 8 parts"):
        Key("k", ["p"] * 9)


@pytest.mark.parametrize("value", ["\ud800", "a\udfff", 5, None, b"x", ["x"]])
def test_what_is_no_text_is_refused(value: Any) -> None:
    with pytest.raises(InvalidKeyError):
        Key(value)
    with pytest.raises(InvalidKeyError):
        Key("k", scope=(value,))


def test_a_string_is_no_scope() -> None:
    with pytest.raises(InvalidKeyError, match="tuple of strings"):
        Key("k", scope="tenant")


def test_immutable_and_hashable() -> None:
    key = Key("k", ("s",))
    for name in ("value", "scope", "id", "other"):
        with pytest.raises(AttributeError, match="immutable"):
            setattr(key, name, "x")
        with pytest.raises(AttributeError, match="immutable"):
            delattr(key, name)
    assert len({key, Key("k", ["s"])}) == 1
    assert key != "k"


def test_pickles_and_copies() -> None:
    key = Key("k\0👍", ("a", "b"))
    for other in (pickle.loads(pickle.dumps(key)), copy.copy(key), copy.deepcopy(key)):
        assert other == key
        assert (other.value, other.scope, other.id) == (key.value, key.scope, key.id)


def test_the_identity_is_pinned() -> None:
    """Stored records depend on it: it must never change."""
    assert Key("k").short == "2b0ccd37"
    assert Key("tx-123", ("acct_1", "POST /charges")).id.hex() == PINNED


PINNED = "c45d59f9a969e9060c72f2e066c99c4d90b606af053d9bdc4799cd30dc48e8d2"


def test_repr_shows_no_value() -> None:
    key = Key("secret-value", ("secret-tenant",))
    for text in (repr(key), str(key), f"{key}"):
        assert "secret" not in text
        assert key.short in text


# --- makers ----------------------------------------------------------------------------------------


def test_from_content() -> None:
    order = {"id": 1, "amount": 5, "sent_at": 1}
    key = Key.from_content(order)
    assert key == Key.from_content(dict(reversed(order.items())))
    assert key != Key.from_content({**order, "amount": 5.0})
    later = {**order, "sent_at": 2}
    assert key != Key.from_content(later)
    assert Key.from_content(order, ignore=["sent_at"]) == Key.from_content(
        later, ignore=["sent_at"]
    )
    assert Key.from_content(order, only=["id"]) == Key.from_content({"id": 1}, only=["id"])
    assert Key.from_content(order, scope=("t",)).scope == ("t",)


def test_fields_that_reach_nothing_do_not_make_one_key_of_all() -> None:
    one, two = ({"items": [{"id": number}]} for number in (1, 2))
    path = ("items.id",)
    assert Key.from_content(one, only=path) != Key.from_content(two, only=path)
    with pytest.raises(MissingKeyError, match="'idd'"):
        Key.from_content({"id": 1}, only=("idd",))


def test_content_of_which_nothing_is_left_has_no_key() -> None:
    with pytest.raises(MissingKeyError, match="only fields that ignore= leaves out"):
        Key.from_content({"at": 1}, ignore=("at",))
    with pytest.raises(MissingKeyError, match="only fields that ignore= leaves out"):
        Key.from_content({"meta": {"at": 1}, "trace": "x"}, ignore=("meta", "trace"))
    assert Key.from_content({}, ignore=("at",)) == Key.from_content({})
    assert Key.from_content({"note": ""}, ignore=("at",)) != Key.from_content({}, ignore=("at",))


def test_from_message() -> None:
    key = Key.from_message(type="order.paid", id="77", version=2, source="shop", scope=("t",))
    assert (key.value, key.scope) == ("order.paid@v2:77", ("t", "shop", "order.paid"))
    assert Key.from_message(type="a:b", id="c") != Key.from_message(type="a", id="b:c")
    assert Key.from_message(type="a", id="1:v2") != Key.from_message(type="a", id="1", source="v2")
    versioned = Key.from_message(type="a", id="1", version=2)
    for id_ in ("1:v2", "v2:1", "@v2:1", "a@v2:1"):
        assert Key.from_message(type="a", id=id_) != versioned
        assert Key.from_message(type="a", id=id_, version=2) != versioned
    assert Key.from_message(type="a@v2", id="1") != versioned
    for bad in ({"type": "", "id": "1"}, {"type": "a", "id": ""}):
        with pytest.raises(MissingKeyError):
            Key.from_message(**bad)


def test_natural_counts_types_and_boundaries() -> None:
    assert Key.natural("invoice", 2026, 11) == Key.natural("invoice", 2026, 11)
    keys = {
        Key.natural("a", 1),
        Key.natural("a", "1"),
        Key.natural("a1"),
        Key.natural("a", "1", ""),
        Key.natural(UUID(int=1)),
        Key.natural(str(UUID(int=1))),
    }
    assert len(keys) == 6
    with pytest.raises(MissingKeyError):
        Key.natural()


def test_random_is_a_uuid7_in_order_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for millisecond in (1_700_000_000_000, 1_700_000_000_001):
        monkeypatch.setattr("time.time_ns", lambda ms=millisecond: ms * 1_000_000)
        made.append(Key.random().value)
    assert made == sorted(made)
    assert len({Key.random() for _ in range(1000)}) == 1000
    number = UUID(made[0])
    assert (number.version, number.variant) == (7, "specified in RFC 4122")
    assert number.int >> 80 == 1_700_000_000_000


def test_derive_is_deterministic_and_distinct() -> None:
    key = Key("k", ("t",))
    assert key.derive("charge") == Key("k", ("t",)).derive("charge")
    assert key.derive("charge").scope == ("t",)
    keys = {key, key.derive("a"), key.derive("b"), key.derive("a").derive("b"), key.derive("ab")}
    assert len(keys) == 5
    assert Key("k").derive("a") != key.derive("a")


class Texts(str, enum.Enum):  # noqa: UP042 - its str() is its name, which is the point
    ONE = "ord-1"


class Numbers(int, enum.Enum):
    ONE = 1


def test_as_key() -> None:
    assert as_key("k", ("s",)) == Key("k", ("s",))
    assert as_key(Key("k", ("t",)), ("s",)) == Key("k", ("s", "t"))
    assert as_key(Key("k", absolute=True), ("s",)) == Key("k")
    assert as_key(5) == Key("5")
    assert as_key(UUID(int=5)) == Key(str(UUID(int=5)))
    assert as_key(Texts.ONE) == Key(Texts.ONE) == Key("ord-1")
    assert as_key(Numbers.ONE) == Key("1")
    assert type(Key(Texts.ONE).value) is type(as_key(Texts.ONE).value) is str
    with pytest.raises(MissingKeyError):
        as_key(None)
    for bad in (True, 1.5, b"k", ("k",)):
        with pytest.raises(InvalidKeyError, match="not"):
            as_key(bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("plain", ["k", 5, UUID(int=5), Key("k", ("t",)), Key("k", absolute=True)])
def test_a_full_key_stays_as_it_is(plain: Any) -> None:
    full = as_key(plain, ("s",))
    assert as_key(full, ("s",)) is full
    assert as_key(pickle.loads(pickle.dumps(full)), ("s",)) == full
    assert as_key(full.derive("step"), ("s",)) == full.derive("step")


def test_a_derived_key_is_absolute_if_its_parent_is() -> None:
    assert not Key("k").derive("step").absolute
    assert Key("k", absolute=True).derive("step").absolute
