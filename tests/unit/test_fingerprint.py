"""Canonical form and fingerprints: injective, stable for ever, and able to name what differs (D7)."""

# ruff: noqa: DTZ001, DTZ901 - naive datetimes are values too

from __future__ import annotations

import ast
import enum
import hashlib
import itertools
import json
import math
import os
import subprocess
import sys
import types
import typing
import unicodedata
from collections import Counter, OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal, localcontext
from pathlib import Path
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twicesafe._values.canonical import MAX_DEPTH, canonical
from twicesafe._values.codecs import DEFAULT_CODEC
from twicesafe._values.fingerprint import (
    MAX_BYTES,
    content_digest,
    field_names,
    fields_that_differ,
    fingerprint,
    stated,
)
from twicesafe.errors import (
    ConfigurationError,
    MissingKeyError,
    NotStorableError,
    UsageError,
)

GOLDEN = Path(__file__).parent / "golden" / "fingerprint_scheme_1.json"


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Size(enum.StrEnum):
    S = "s"


class Level(enum.IntEnum):
    LOW = 1


class Bits(enum.Flag):
    A = 1
    B = 2


@dataclass
class Order:
    id: int
    note: str | None = None


@dataclass
class Refund:
    id: int
    note: str | None = None


@attrs.define
class Parcel:
    id: int
    _secret: str = "s"


class Invoice(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    id: int
    net: Decimal = Decimal(0)


class Point(msgspec.Struct):
    x: int
    y: int | msgspec.UnsetType = msgspec.UNSET


class Pair(typing.NamedTuple):
    a: int
    b: int


class Word(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "something else"


class Whole(int):
    pass


class Slots:
    __slots__ = ("a",)


U = UUID("12345678-1234-5678-1234-567812345678")

# Every value here differs from every other one.
DISTINCT: list[object] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    1.0,
    "1",
    b"1",
    [1],
    (1,),
    {1},
    {"1": 1},
    {1: 1},
    {1.0: 1},
    {True: 1},
    {b"1": 1},
    {None: 1},
    {(1,): 1},
    "",
    b"",
    [],
    (),
    set(),
    {},
    [None],
    [[]],
    [[], []],
    [[[]]],
    {"a": None},
    {"a": {}},
    {"a": 1, "b": 2},
    {"a": 2, "b": 1},
    {"ab": 1},
    ["a", "b"],
    ["ab"],
    ["a", "b", ""],
    2**63,
    2**64 - 1,
    2**64,
    2**64 + 1,
    -(2**63),
    -(2**63) - 1,
    -(2**64),
    10**5000,
    float(2**64),
    math.inf,
    -math.inf,
    1e-300,
    Decimal("1"),
    Decimal("1.0"),
    Decimal("1.00"),
    Decimal("1E+2"),
    Decimal("100"),
    Decimal("0"),
    Decimal("-0"),
    Decimal("Infinity"),
    "1.0",
    U,
    str(U),
    U.bytes,
    U.int,
    date(2026, 1, 2),
    "2026-01-02",
    datetime(2026, 1, 2),
    datetime(2026, 1, 2, tzinfo=UTC),
    datetime(2026, 1, 2, 0, 0, 0, 1),
    datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=1))),
    datetime.min,
    datetime.min.replace(tzinfo=timezone(timedelta(hours=1))),
    datetime.max.replace(tzinfo=timezone(-timedelta(hours=1))),
    time(12),
    time(12, tzinfo=UTC),
    time(12, tzinfo=timezone(timedelta(hours=1))),
    time(12, tzinfo=ZoneInfo("Europe/Zurich")),
    timedelta(0),
    timedelta(1),
    timedelta(seconds=1),
    timedelta(microseconds=-1),
    86400,
    Color.RED,
    Color.BLUE,
    "RED",
    Size.S,
    "s",
    Level.LOW,
    Bits.A,
    Bits.A | Bits.B,
    Bits(0),
    Order(1),
    Order(1, "x"),
    Refund(1),
    {"id": 1, "note": None},
    Parcel(1),
    Invoice(id=1),
    Invoice(id=1, net=Decimal("0.0")),
    Invoice(id=1, other=2),
    Point(1),
    Point(1, 2),
    Pair(1, 2),
    (1, 2),
    [1, 2],
    {1, 2},
    {frozenset({1}), frozenset({2})},
    unicodedata.normalize("NFC", "é"),
    unicodedata.normalize("NFD", "é"),
    "\ud800",
    "\udc80",
    "�",
    "\ud800".encode("utf-8", "surrogatepass"),
    {"\ud800": 1},
    {"\ud800": 1, 1: 1},
    {"A": 1},
    {"a": 1},
    {"a": 1.0},
    {"a": True},
    {"a": "1"},
    {"a": 2**70},
]

SAME: list[tuple[object, object]] = [
    (0.0, -0.0),
    ({"a": 0.0}, {"a": -0.0}),
    ({1, 2, 3}, frozenset({3, 2, 1})),
    (b"abc", bytearray(b"abc")),
    (b"abc", memoryview(b"abc")),
    (b"cba", memoryview(b"abc")[::-1]),
    ({"a": 1, "b": [1]}, {"b": [1], "a": 1}),
    ({1: 1, "a": 2}, {"a": 2, 1: 1}),
    ({"a": 1}, OrderedDict(a=1)),
    ({"a": 1}, Counter("a")),
    ({"a": 1}, defaultdict(int, a=1)),
    ({"a": 1}, types.MappingProxyType({"a": 1})),
    ({1: 1}, types.MappingProxyType({1: 1})),
    ({1: 1}, OrderedDict({1: 1})),
    (Word("x"), "x"),
    ({Word("x"): 1}, {"x": 1}),
    (Whole(7), 7),
    (Whole(2**80), 2**80),
    (
        datetime(2026, 1, 2, 12, tzinfo=UTC),
        datetime(2026, 1, 2, 13, tzinfo=timezone(timedelta(hours=1))),
    ),
    (
        datetime(2026, 7, 2, 12, tzinfo=UTC),
        datetime(2026, 7, 2, 14, tzinfo=ZoneInfo("Europe/Zurich")),
    ),
    (Pair(1, 2), namedtuple("Pair", "a b")(1, 2)),  # noqa: PYI024 - the old way too
    (Point(1), Point(1, msgspec.UNSET)),
]


def test_every_two_distinct_values_have_distinct_bytes():
    forms = [canonical(value) for value in DISTINCT]
    wrapped = [canonical({"field": value, "n": 1}) for value in DISTINCT]
    prints = [fingerprint(value) for value in DISTINCT]
    for several in (forms, wrapped, prints):
        for (a, left), (b, right) in itertools.combinations(zip(DISTINCT, several, strict=True), 2):
            assert left != right, (a, b)


@pytest.mark.parametrize("left,right", SAME, ids=lambda value: type(value).__name__)
def test_what_means_the_same_has_the_same_bytes(left, right):
    assert canonical(left) == canonical(right)
    assert canonical([left]) == canonical([right])
    assert fingerprint(left) == fingerprint(right)
    assert fingerprint({"a": left}) == fingerprint({"a": right})
    assert content_digest(left) == content_digest(right)


def test_the_fold_of_a_zoned_datetime_counts():
    # 02:30 happens twice that night.
    first = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Zurich"))
    assert canonical(first) != canonical(first.replace(fold=1))


def test_a_decimal_does_not_depend_on_the_context():
    expected = canonical(Decimal("1E+5"))
    with localcontext() as context:
        context.capitals = 0
        context.prec = 1
        assert canonical(Decimal("1E+5")) == expected


# -- refusals ---------------------------------------------------------------------------------


class Opaque:
    def __repr__(self) -> str:
        raise AssertionError("repr() is never asked")

    __str__ = __repr__

    def __hash__(self) -> int:
        raise AssertionError("hash() is never asked")

    def __eq__(self, other: object) -> bool:
        raise AssertionError("== is never asked")


@pytest.mark.parametrize(
    "value,place",
    [
        (Opaque(), "value is a"),
        ({"items": [1, {"who": Opaque()}]}, "value['items'][1]['who'] is a"),
        (Order(1, Opaque()), "value.note is a"),  # type: ignore[arg-type]
        ((Opaque(),), "value[0] is a"),
        ({1: Opaque()}, "value[a int as key] is a"),
        (1j, "value is a builtins.complex"),
        (object, "value is a builtins.type"),
        (Order, "value is a builtins.type"),
        (len, "value is a"),
        (lambda: None, "value is a"),
        (ValueError("x"), "value is a builtins.ValueError"),
        (range(3), "value is a builtins.range"),
        (Slots(), "value is a"),
        (math.nan, "value is NaN"),
        ({"a": math.nan}, "value['a'] is NaN"),
        ([Decimal("NaN")], "value[0] is NaN"),
        ([Decimal("sNaN")], "value[0] is NaN"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_has_no_form_is_refused_by_place_and_remedy(value, place):
    for ask in (canonical, fingerprint, content_digest):
        with pytest.raises(UsageError) as caught:
            ask(value)
        assert str(caught.value).startswith(place)
        assert "fingerprint=" in str(caught.value)


def test_depth_is_bounded():
    nested: object = 1
    for _ in range(MAX_DEPTH):
        nested = [nested]
    assert canonical(nested)
    assert fingerprint(nested)
    with pytest.raises(UsageError, match="nested more than 64 levels"):
        canonical([nested])
    for wrap in (lambda v: [v], lambda v: {"a": v}, lambda v: {1: v}, lambda v: (v,), Order):
        deep: object = 1
        for _ in range(100_000):
            deep = wrap(deep)
        for ask in (canonical, fingerprint):
            with pytest.raises(UsageError, match="nested more than 64 levels"):
                ask(deep)
        while not isinstance(deep, int):  # unwind by hand: some versions recurse to free it
            deep = deep.id if isinstance(deep, Order) else next(iter(_children(deep)))


def _children(value):
    return value.values() if isinstance(value, dict) else value


def test_an_extra_value_does_not_hide_the_field_of_its_name():
    """Pydantic keeps both if the field has an alias. Two amounts had one fingerprint."""

    class Transfer(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="allow")
        amount: int = pydantic.Field(alias="amt")

    transfer = Transfer.model_validate({"amt": 5, "amount": 0})
    with pytest.raises(UsageError, match=r"a .*Transfer has an extra value 'amount' .* alias"):
        fingerprint(transfer)
    with pytest.raises(NotStorableError, match="could not be read"):
        DEFAULT_CODEC.encode(transfer, Transfer)


def test_cycles_are_refused_at_once():
    twice: list[object] = []
    twice += [twice, twice]  # following both arms would take 2**64 steps
    loop: dict[str, object] = {}
    loop["self"] = loop
    order = Order(1)
    order.note = order  # type: ignore[assignment]
    for value in (twice, loop, order, [order]):
        for ask in (canonical, fingerprint):
            with pytest.raises(UsageError, match="contains itself"):
                ask(value)


def test_shared_parts_are_no_cycle():
    part = {"a": [1]}
    assert canonical([part, part]) == canonical([{"a": [1]}, {"a": [1]}])


def test_a_nearly_full_stack_is_a_clean_error():
    nested: object = 1
    for _ in range(60):
        nested = [nested]

    def descend(levels: int) -> object:
        return canonical(nested) if levels == 0 else descend(levels - 1)

    outcomes = set()
    for levels in range(0, sys.getrecursionlimit(), 25):
        try:
            descend(levels)
        except UsageError:
            outcomes.add("refused")
        except RecursionError:
            outcomes.add("no room even to call")
        else:
            outcomes.add("done")
    assert {"done", "refused"} <= outcomes


# -- fingerprints -----------------------------------------------------------------------------

ORDER = {"id": "o-1", "amount": 1250, "currency": "EUR", "meta": {"trace_id": "t1", "shop": 7}}


def test_layout():
    plain = fingerprint([1])
    assert len(plain) == 33
    assert plain[0] == 1
    assert plain[1:] == content_digest([1])
    assert len(fingerprint(ORDER)) == 33 + 8 * 4
    assert fingerprint(ORDER)[1:33] == content_digest(ORDER)
    assert len(fingerprint({})) == 33
    assert len(fingerprint({str(n): n for n in range(16)})) == 33 + 8 * 16
    assert len(fingerprint({str(n): n for n in range(17)})) == 33
    assert len(fingerprint({1: 1})) == 33


@pytest.mark.parametrize(
    "old,new,expected",
    [
        (ORDER, ORDER, ()),
        (ORDER, {**ORDER, "amount": 1}, ("amount",)),
        (ORDER, {**ORDER, "amount": 1250.0}, ("amount",)),
        (ORDER, {**ORDER, "id": "o-2", "currency": "CHF"}, ("id", "currency")),
        (ORDER, {**ORDER, "extra": None}, ("extra",)),
        (ORDER, {**ORDER, "meta": {"trace_id": "t2", "shop": 7}}, ("meta",)),
        (Order(1), Order(2), ("id",)),
        (Parcel(1), Parcel(1, "t"), ("_secret",)),
        (Invoice(id=1), Invoice(id=1, more=1), ("more",)),
        (Point(1), Point(1, 2), ("y",)),
        (Pair(1, 2), Pair(1, 3), ("b",)),
        ({"a": 2**70}, {"a": 2**71}, ("a",)),
        ({"\ud800": 1}, {"\ud800": 2}, ("\ud800",)),
        ([1], {"a": 1}, ()),  # unknown
        ({"a": 1}, [1], ()),
        ({str(n): n for n in range(17)}, {"1": 2}, ()),
    ],
)
def test_a_mismatch_names_the_fields(old, new, expected):
    assert fields_that_differ(fingerprint(old), fingerprint(new), field_names(new)) == expected


def test_a_field_that_the_new_request_lacks_is_named_if_asked_for():
    old, new = fingerprint({"a": 1, "b": 2}), fingerprint({"a": 1})
    assert fields_that_differ(old, new, ("a", "b", "c")) == ("b",)


@pytest.mark.parametrize("stored", [b"", b"\x02" * 41, b"\x01" * 40, b"\x01", b"\x01" * 33])
def test_other_schemes_and_nonsense_are_unknown(stored):
    assert fields_that_differ(stored, fingerprint(ORDER), tuple(ORDER)) == ()
    assert fields_that_differ(fingerprint(ORDER), stored, tuple(ORDER)) == ()


def test_ignore_and_only():
    noise = {**ORDER, "amount": 9}
    assert fingerprint(ORDER, ignore=("amount",)) == fingerprint(noise, ignore=("amount",))
    assert fingerprint(ORDER, ignore=("id",)) != fingerprint(noise, ignore=("id",))
    assert fingerprint(ORDER, only=("id", "meta")) == fingerprint(noise, only=["id", "meta"])
    assert fingerprint(ORDER, only=("id", "absent")) == fingerprint({"id": "o-1"})
    assert fingerprint(ORDER, ignore=("absent",)) == fingerprint(ORDER)
    assert content_digest(ORDER, only=("id",)) == content_digest({"id": "o-1"})
    assert content_digest(ORDER, ignore=("meta", "id")) == content_digest(
        {"amount": 1250, "currency": "EUR"}
    )


def test_ignore_and_only_go_below_the_top():
    other = {**ORDER, "meta": {"trace_id": "t2", "shop": 7}}
    assert fingerprint(ORDER) != fingerprint(other)
    assert fingerprint(ORDER, ignore=("meta.trace_id",)) == fingerprint(
        other, ignore=("meta.trace_id",)
    )
    assert fingerprint(ORDER, only=("id", "meta.shop")) == fingerprint(
        {"id": "o-1", "meta": {"shop": 7}}
    )
    assert fingerprint({"meta": 5}, ignore=("meta.x",)) == fingerprint({"meta": 5})
    assert fingerprint({"a.b": 1, "c": 1}, ignore=("a.b",)) == fingerprint({"c": 1})


def test_ignore_and_only_work_on_objects():
    assert fingerprint(Order(1, "x"), ignore=("note",)) == fingerprint(
        Order(1, "y"), ignore=("note",)
    )
    assert fingerprint(Order(1, "x"), only=("id",)) != fingerprint({"id": 1})
    nested = {"order": Order(1, "x")}
    assert fingerprint(nested, ignore=("order.note",)) != fingerprint(nested)


def test_a_value_without_fields_is_compared_whole():
    assert fingerprint([1], only=("id",)) == fingerprint([1])
    assert fingerprint([1], ignore=("id",)) == fingerprint([1])
    basket = {"items": [{"id": 1}], "at": 1}
    assert fingerprint(basket, only=("items.id",)) == fingerprint({"items": [{"id": 1}]})
    assert fingerprint({"meta": 5, "a": 1}, only=("meta.x",)) == fingerprint({"meta": 5})
    assert fingerprint({"meta": None, "a": 1}, only=("meta.x.y",)) == fingerprint({"meta": None})


@pytest.mark.parametrize("only", [("idd",), ("meta.idd", "Id"), ("meta.",), ("meta.shop.",)])
def test_content_without_any_of_the_fields_has_no_key(only):
    content = {**ORDER, "meta": {"shop": {"id": 1}}}
    with pytest.raises(MissingKeyError, match=r"none of the fields in only=\('"):
        content_digest(content, only=only)
    assert fingerprint(content, only=only)  # a fingerprint is beside a key, and may be of nothing


@pytest.mark.parametrize("content", [{"id": None}, {"id": {}}, {"a": {"b": ""}}, {"a": []}, [], 5])
def test_an_empty_field_is_a_field(content):
    assert content_digest(content, only=("id", "a.b")) == content_digest(content)


@pytest.mark.parametrize(
    "settings",
    [
        {"ignore": "id"},
        {"only": "id"},
        {"only": b"id"},
        {"ignore": ("id",), "only": ("amount",)},
        {"ignore": (1,)},
        {"ignore": ("",)},
        {"only": 5},
    ],
    ids=str,
)
def test_settings_that_make_no_sense(settings):
    for ask in (fingerprint, content_digest):
        with pytest.raises(ConfigurationError):
            ask(ORDER, **settings)


def test_peers_fingerprints_ignored_these_types():  # justonce: Decimal, UUID, datetime
    for a, b in [
        (Decimal(1), Decimal(2)),
        (U, UUID(int=1)),
        (datetime(2026, 1, 1), datetime(2026, 1, 2)),
    ]:
        assert fingerprint({"a": a}) != fingerprint({"a": b})


# -- for ever, everywhere ---------------------------------------------------------------------

NAMES = {
    name: globals()[name]
    for name in [
        "Bits",
        "Color",
        "Decimal",
        "Invoice",
        "Level",
        "Order",
        "Pair",
        "Parcel",
        "Point",
        "Size",
        "UTC",
        "UUID",
        "ZoneInfo",
        "date",
        "datetime",
        "time",
        "timedelta",
        "timezone",
    ]
} | {"inf": math.inf}


def test_golden_vectors_of_scheme_1():
    vectors = json.loads(GOLDEN.read_text("utf-8"))["vectors"]
    assert len(vectors) > 60
    for vector in vectors:
        value = eval(vector["value"], dict(NAMES))
        assert canonical(value).hex() == vector["canonical"], vector["value"]
        assert fingerprint(value).hex() == vector["fingerprint"], vector["value"]


def test_what_a_caller_states_as_the_fingerprint():
    assert stated(None) is None
    assert stated({"a": 1}) == fingerprint({"a": 1})
    for blob in (b"", b"f", b"f" * MAX_BYTES):
        assert stated(blob) == blob
    long = b"f" * (MAX_BYTES + 1)
    assert stated(long) == b"\x02" + hashlib.sha256(long).digest()
    assert len(fingerprint(dict.fromkeys("abcdefghijklmnop"))) <= MAX_BYTES


HASH_SEED_SCRIPT = """
from twicesafe._values.fingerprint import fingerprint
words = {f"word-{n}" for n in range(50)}
value = {"words": words, "map": {word: n for n, word in enumerate(sorted(words))},
         "odd": {(1, "a"): {"x", "y"}, None: frozenset(words), b"k": 1}}
print(fingerprint(value).hex())
print(fingerprint(dict.fromkeys(words)).hex())
"""


def test_the_hash_seed_changes_nothing():
    def run(seed: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", HASH_SEED_SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    assert len({run(seed) for seed in ("0", "1", "random", "random")}) == 1


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
    | st.binary() | st.decimals(allow_nan=False) | st.uuids() | st.dates() | st.datetimes(),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=4)
    | st.tuples(inner, inner),
    max_leaves=12,
)  # fmt: skip


def _shuffled(value):
    if isinstance(value, dict):
        return {key: _shuffled(item) for key, item in reversed(value.items())}
    if isinstance(value, (list, tuple)):
        return type(value)(map(_shuffled, value))
    return value


def _exact(value) -> str:
    """Another injective description, slow and independent, to compare with."""
    if isinstance(value, dict):
        return f"{{{sorted((_exact(k), _exact(v)) for k, v in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}{[_exact(item) for item in value]}"
    if isinstance(value, float):
        value += 0.0
    return f"{type(value).__name__}:{value!a}"


@given(plain)
def test_order_never_counts(value):
    assert canonical(value) == canonical(_shuffled(value))
    assert fingerprint(value) == fingerprint(_shuffled(value))


@given(plain, plain)
def test_equal_bytes_mean_equal_values(left, right):
    assert (canonical(left) == canonical(right)) == (_exact(left) == _exact(right))


@given(st.dictionaries(st.text(), plain, min_size=1, max_size=16), st.data())
def test_changing_one_field_names_that_field(value, data):
    name = data.draw(st.sampled_from(sorted(value)))
    changed = {**value, name: [value[name]]}
    assert fields_that_differ(fingerprint(value), fingerprint(changed), tuple(changed)) == (name,)


def test_neither_repr_nor_hash_nor_pickle_in_the_source():
    import twicesafe._values.canonical
    import twicesafe._values.fingerprint
    import twicesafe._values.object_fields

    for module in (
        twicesafe._values.canonical,
        twicesafe._values.fingerprint,
        twicesafe._values.object_fields,
    ):
        tree = ast.parse(Path(module.__file__).read_text("utf-8"))
        called = {n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}  # fmt: skip
        assert not called & {"repr", "hash", "eval", "exec"}


@dataclass(frozen=True, slots=True)
class Hidden:
    a: int
    b: int = field(default=2, compare=False, repr=False)


def test_every_field_of_a_dataclass_counts():
    assert canonical(Hidden(1)) != canonical(Hidden(1, 3))
    assert canonical({"a": Hidden(1)}) == canonical({"a": Hidden(1)})
