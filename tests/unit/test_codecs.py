"""Codecs: a replay equals the first result, type by type; stored bytes are only ever data (D8, D21)."""

# ruff: noqa: DTZ001, DTZ901 - naive datetimes are values too

from __future__ import annotations

import ast
import collections
import contextlib
import enum
import functools
import http
import inspect
import io
import json
import math
import pickle
import subprocess
import sys
import typing
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, TypedDict, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twicesafe._values.codecs import DEFAULT_CODEC, MAX_DEPTH, Codec, JsonCodec, resolve_return_type
from twicesafe.errors import CorruptRecordError, NotStorableError

encode, decode = DEFAULT_CODEC.encode, DEFAULT_CODEC.decode
T = TypeVar("T")


def exact(left: Any, right: Any) -> bool:
    """Equal, and of the same types all the way down. NaN equals NaN here."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return len(left) == len(right) and all(
            exact(a, b) and exact(left[a], right[b]) for a, b in zip(left, right, strict=True)
        )
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(exact, left, right))
    if isinstance(left, (set, frozenset)):
        kinds = [collections.Counter(map(type, several)) for several in (left, right)]
        return kinds[0] == kinds[1] and left == right
    if isinstance(left, float):
        return (math.isnan(left) and math.isnan(right)) or (
            left == right and math.copysign(1, left) == math.copysign(1, right)
        )
    if isinstance(left, Decimal):
        return str(left) == str(right)
    if isinstance(left, (datetime, time)):
        return (
            left.replace(tzinfo=None) == right.replace(tzinfo=None)
            and left.fold == right.fold
            and type(left.tzinfo) is type(right.tzinfo)
            and repr(left.tzinfo) == repr(right.tzinfo)
        )
    return bool(left == right)


def comes_back(value: Any, declared: Any = Any) -> bytes:
    payload = encode(value, declared)
    assert exact(decode(payload, declared), value)
    return payload


# -- builtins, without any annotation ---------------------------------------------------------

ZURICH = ZoneInfo("Europe/Zurich")

BUILTINS: list[Any] = [
    None, True, False, 0, 1, -1, "", "text", "é\u0301 \x00 \U0001f600", [], {}, [[]], [{}], {"": ""},
    1.0, 0.0, -0.0, 1e300, 5e-324, 0.1, 1e16, 123456789012345680.0, math.inf, -math.inf, math.nan,
    2**53 + 1, 2**63, 2**64, -(2**63) - 1, 2**70, 10**4299, 10**4300, -(10**10000),
    {"id": 7, "ok": True, "none": None, "rate": 1.5, "list": [1, "2", None]},
    b"", b"\x00\xff", bytearray(b"abc"), (), (1,), (1, (2, [3])), [(1,), [1]],
    set(), {1, "a", None}, frozenset(), frozenset({1, 2}), {frozenset({1}), (1, 2)},
    Decimal(0), Decimal("1.50"), Decimal("-0"), Decimal("1E+400"), Decimal("NaN"), Decimal("-Infinity"),
    Decimal("sNaN7"), UUID(int=5), date(2026, 2, 28), date.min, date.max, time(12, 30, 1, 5),
    time(12, tzinfo=UTC), time(1, tzinfo=ZURICH), time(2, 30, fold=1),
    datetime(2026, 1, 2), datetime(2026, 1, 2, 3, 4, 5, 6), datetime.min, datetime.max,
    datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=-5, minutes=-30))),
    datetime(2026, 1, 2, tzinfo=timezone(timedelta(seconds=1, microseconds=1))),
    datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=1), "CET")), datetime(2026, 1, 2, tzinfo=timezone(timedelta(0), "Z")),
    datetime(2026, 10, 25, 2, 30, tzinfo=ZURICH), datetime(2026, 10, 25, 2, 30, tzinfo=ZURICH, fold=1),
    datetime(2026, 1, 2, tzinfo=ZoneInfo("UTC")), datetime.max.replace(tzinfo=ZURICH),
    timedelta(0), timedelta(days=-1, microseconds=1), timedelta.max, timedelta.min,
    {1: "a"}, {1: 1, "1": 2}, {None: 1, True: 2, 2.5: 3, (1, 2): 4, b"x": 5}, {Decimal("1.5"): {UUID(int=1): {date.min}}},
    {"$": "decimal", "v": "1"}, {"$": None}, {"a": {"$": "object", "c": "Order", "v": {}}, "d": Decimal(1)},
    {"$": {"$": {"$": (1,)}}}, {"v": 1, "c": (2,)}, "\ud800", {"\ud800": 1}, ["ok", "\udfff", (1,)],
    {"order": [{"b": (1,), "a": 2}]},
]  # fmt: skip


@pytest.mark.parametrize("value", BUILTINS, ids=lambda v: type(v).__name__)
@pytest.mark.parametrize("declared", [Any, None, inspect.Signature.empty, int, dict[str, str], str])
def test_builtins_come_back_exactly_whatever_is_declared(value, declared):
    comes_back(value, declared)
    comes_back([value, {"a": value}], declared)
    comes_back((value,), declared)


@pytest.mark.parametrize("value", [0, False, "", [], {}, 0.0, (), None])
def test_falsy_results_stay_themselves(value):  # powertools: 0, False, "", [], {} replay as None
    comes_back(value)


def test_plain_json_is_plain_json():
    assert encode({"a": [1, 1.0, True, None, "x"]}) == b'j{"a":[1,1.0,true,null,"x"]}'
    assert encode({"$": 1})[:1] == b"j"
    assert encode((1,)) == b't{"$":"tuple","v":[1]}'
    assert encode({"$": (1,)}) == b't{"$":"map","v":[["$",{"$":"tuple","v":[1]}]]}'


def test_a_raised_limit_for_int_digits_writes_nothing_unreadable():
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        payload = encode({"n": 10**5000})
    finally:
        sys.set_int_max_str_digits(before)
    assert decode(payload) == {"n": 10**5000}


def test_sets_are_written_in_one_order():
    words = [f"w{n}" for n in range(100)]
    backwards = words[::-1]
    assert encode(set(words)) == encode(set(backwards))


def test_subclasses_of_uuid_and_foreign_fixed_offsets_come_back_as_the_standard_ones():
    class DriverUUID(UUID):
        pass

    assert exact(decode(encode(DriverUUID(int=3))), UUID(int=3))
    moment = pydantic.TypeAdapter(datetime).validate_python("2026-01-02T03:04:05+02:00")
    back = decode(encode(moment))
    assert back == moment
    assert back.utcoffset() == moment.utcoffset()
    assert type(back.tzinfo) is timezone


scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary()
    | st.decimals() | st.uuids() | st.dates() | st.times() | st.timedeltas() | st.datetimes(timezones=st.none() | st.timezones() | st.just(UTC))
)  # fmt: skip
hashables = st.recursive(
    scalars.filter(lambda v: "nan" not in str(v).lower()),  # no key is found again by a NaN
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)
values = st.recursive(
    scalars | st.builds(bytearray, st.binary()),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=3) | st.sampled_from(["$", "v", "c"]), inner, max_size=4)
        | st.dictionaries(hashables, inner, max_size=3)
        | st.tuples(inner, inner)
        | st.sets(hashables, max_size=3)
        | hashables
    ),
    max_leaves=15,
)


@given(values)
def test_any_mixture_comes_back_exactly(value):
    payload = comes_back(value)
    assert encode(decode(payload)) == payload


# -- rich objects, with the declared type -----------------------------------------------------


class Color(enum.Enum):
    RED = "r"
    BLUE = "b"


class Level(enum.IntEnum):
    LOW = 1


class Size(enum.StrEnum):
    SMALL = "s"


class Bits(enum.IntFlag):
    A = 1
    B = 2


@dataclass
class Line:
    sku: str
    price: Decimal
    color: Color = Color.RED


@dataclass(frozen=True, slots=True)
class Order:
    id: UUID
    lines: list[Line] = field(default_factory=list)
    total: Decimal = field(init=False, default=Decimal(0))
    parent: Order | None = None


@dataclass
class Refund:
    id: UUID
    reason: Any = None


@dataclass
class Page(Generic[T]):
    items: list[T]
    next: int | None = None


@attrs.define
class Parcel:
    id: int
    _secret: str = "s"
    made: datetime = attrs.field(init=False, default=datetime(2026, 1, 1))
    line: Line | None = None


@attrs.frozen(kw_only=True)
class Label:
    size: Size
    n: int = attrs.field(converter=int)


class Customer(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    name: str = pydantic.Field(alias="customerName")
    born: date | None = None
    tags: set[str] = set()
    line: Line | None = None
    _seen: int = pydantic.PrivateAttr(default=0)


class Site(pydantic.BaseModel):
    url: pydantic.HttpUrl
    where: Path = Path("/srv")


class Names(pydantic.RootModel[list[str]]):
    pass


class Box(pydantic.BaseModel, Generic[T]):
    content: T


class Vault(pydantic.BaseModel):
    secret: pydantic.SecretStr


class Point(msgspec.Struct):
    x: int
    y: float | msgspec.UnsetType = msgspec.UNSET


class Shape(msgspec.Struct, frozen=True, tag=True, rename="camel"):
    corner_points: tuple[Point, ...]


class Pair(NamedTuple):
    left: Line
    right: int = 0


class Basket(TypedDict, total=False):
    lines: typing.Required[list[Line]]
    note: str


class Tag(str):
    __slots__ = ()


class Stack(list[int]):
    pass


class Hits(list[int]):
    """Equality does not see its attributes."""

    __slots__ = ("cursor", "total")

    def __init__(self, items: typing.Iterable[int] = (), total: int = 0) -> None:
        super().__init__(items)
        self.total = total


class Word(str):  # noqa: SLOT000 - with attributes
    language: Any = "en"


Alias = NewType("Alias", Order)
SameNames = collections.namedtuple("SameNames", "a b")  # noqa: PYI024 - the old way too
LINE = Line("a", Decimal("1.50"), Color.BLUE)
ORDER = Order(UUID(int=1), [LINE, Line("b", Decimal(2))])
object.__setattr__(ORDER, "total", Decimal("3.50"))
CUSTOMER = Customer(customerName="Ada", born=date(1815, 12, 10), vip=True)
CUSTOMER._seen = 5

RICH: list[tuple[Any, Any]] = [
    (Color.RED, Color),
    (Level.LOW, Level),
    (Size.SMALL, Size),
    (Bits.A | Bits.B, Bits),
    (Bits(0), Bits),
    (http.HTTPStatus.OK, http.HTTPStatus),
    (Color.RED, Literal[Color.RED, "x"]),
    ({Color.RED: Level.LOW}, dict[Color, Level]),
    ({Color.RED, Color.BLUE}, set[Color]),
    (LINE, Line),
    (ORDER, Order),
    (Order(UUID(int=2), parent=ORDER), Order),
    (ORDER, Alias),
    (ORDER, Order | None),
    (None, Order | None),
    (ORDER, Order | Refund),
    (Refund(UUID(int=1)), Order | Refund),
    (Refund(UUID(int=1), {"any": (1, b"")}), Refund),
    (Refund(UUID(int=1), ORDER), Order | Refund),
    ([ORDER, Refund(UUID(int=1))], list[Order | Refund]),
    ({"a": ORDER}, dict[str, Order]),
    ({1: (ORDER,)}, dict[int, tuple[Order, ...]]),
    ((ORDER, 200), tuple[Order, int]),
    (ORDER, Annotated[Order, ["unhashable"]]),
    (ORDER, Awaitable[Order]),
    (Page([ORDER], 2), Page[Order]),
    (Page([1, 2]), Page[int]),
    (Page([Page([Color.RED])]), Page[Page[Color]]),
    (Parcel(1), Parcel),
    (Parcel(1, "x", LINE), Parcel),
    (Label(size=Size.SMALL, n=3), Label),
    (CUSTOMER, Customer),
    (Customer(customerName="Bob", line=LINE, tags={"x", "y"}), Customer),
    (Customer.model_construct(name=5), Customer),
    (Site(url="https://example.org/a", where="/tmp/x"), Site),
    ([Site(url="https://example.org/a")], list[Site]),
    (Names(["a", "b"]), Names),
    (Box[Order](content=ORDER), Box[Order]),
    (Point(1), Point),
    (Point(1, 2.0), Point),
    (Shape((Point(1), Point(2, math.inf))), Shape),
    (Pair(LINE), Pair),
    (SameNames(1, (2,)), SameNames),
    ({"lines": [LINE], "note": "x"}, Basket),
    (Tag("x"), Tag),
    ({"t": Tag("\ud800")}, dict[str, Tag]),
    (Stack([1, 2]), Stack),
    (collections.OrderedDict(b=1, a=2), collections.OrderedDict[str, int]),
    (collections.Counter("aab"), collections.Counter[str]),
]


@pytest.mark.parametrize("value,declared", RICH, ids=lambda v: getattr(v, "__name__", ""))
def test_rich_objects_come_back_as_their_class(value, declared):
    payload = comes_back(value, declared)
    assert decode(payload, declared) == value
    assert encode(decode(payload, declared), declared) == payload


def test_pydantic_keeps_what_was_set_and_its_private_state():
    back = decode(encode(CUSTOMER, Customer), Customer)
    assert back.model_fields_set == CUSTOMER.model_fields_set
    assert back._seen == 5
    assert back.model_extra == {"vip": True}
    assert back.model_dump(exclude_unset=True) == CUSTOMER.model_dump(exclude_unset=True)


@pytest.mark.parametrize(
    "value", [Color.RED, LINE, ORDER, Parcel(1), CUSTOMER, Point(1), Pair(LINE), Tag("x"), {"a": [LINE]}],
    ids=lambda v: type(v).__name__,
)  # fmt: skip
@pytest.mark.parametrize("declared", [Any, None, inspect.Signature.empty, dict, list[int], Refund])
def test_a_rich_object_that_is_not_declared_is_refused_with_the_remedy(value, declared):
    with pytest.raises(NotStorableError, match="annotate the handler") as caught:
        encode(value, declared)
    assert caught.value.value is value


def test_only_the_declared_class_itself_is_rebuilt():
    @dataclass
    class Special(Refund):
        extra: int = 1

    with pytest.raises(NotStorableError, match="annotate"):
        encode(Special(UUID(int=1)), Refund)
    comes_back(Special(UUID(int=1)), Special)


def test_two_declared_classes_of_one_name_are_refused():
    def make() -> type:
        @dataclass
        class Twin:
            a: int

        return Twin

    one, two = make(), make()
    with pytest.raises(NotStorableError, match="two classes of that name"):
        encode(one(1), one | two)
    comes_back(one(1), one)


@dataclass
class Growing:
    n: int

    def __post_init__(self) -> None:
        self.n += 1


@dataclass
class NeedsMore:
    n: InitVar[int]
    m: int = 0

    def __post_init__(self, n: int) -> None:
        self.m = n


@pytest.mark.parametrize(
    "value,declared",
    [(Growing(1), Growing), (NeedsMore(1), NeedsMore), (Vault(secret="hush"), Vault)],
    ids=["constructor changes it", "constructor wants more", "masked secret"],
)
def test_what_would_not_come_back_the_same_is_refused(value, declared):
    with pytest.raises(NotStorableError):
        encode(value, declared)
    with pytest.raises(NotStorableError) as caught:
        encode([value], list[declared])
    assert "hush" not in str(caught.value)


def test_classes_may_gain_and_lose_fields_between_deployments():
    def version(fields: dict[str, Any]) -> type:
        namespace = {"__annotations__": dict.fromkeys(fields, int), **fields}
        return dataclass(type("Record", (), {k: v for k, v in namespace.items() if v is not ...}))

    old, new = version({"a": ...}), version({"a": ..., "b": 7})
    assert decode(encode(old(1), old), new) == new(1, 7)
    assert decode(encode(new(1, 2), new), old) == old(1)
    needs = version({"b": ...})
    with pytest.raises(CorruptRecordError, match="Record"):
        decode(encode(old(1), old), needs)

    class Model(pydantic.BaseModel):
        a: int

    payload = encode(Model(a=1), Model)

    class Model(pydantic.BaseModel):  # type: ignore[no-redef]
        b: int

    with pytest.raises(CorruptRecordError, match="Model"):
        decode(payload, Model)
    with pytest.raises(CorruptRecordError, match="does not mention"):
        decode(payload, Order)


# -- what cannot be stored --------------------------------------------------------------------


class Secretive:
    def __repr__(self) -> str:
        raise AssertionError("a refused value is never shown")

    __str__ = __repr__


async def _coroutine() -> None: ...


def _generator() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize(
    "make",
    [
        object, Secretive, _generator, lambda: _generator, lambda: len, lambda: io.BytesIO(b"x"),
        lambda: ValueError("canary"), lambda: int, lambda: 1j, lambda: range(2), lambda: ...,
        lambda: memoryview(b"x"), lambda: datetime(2026, 1, 1, tzinfo=_OddZone()),
        lambda: Secretive, lambda: Path("x"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("declared", [Any, object, Order])
def test_what_has_no_form_is_refused_by_place_and_type(make, declared):
    value = make()
    with pytest.raises(NotStorableError, match=r"^value is ") as caught:
        encode(value, declared)
    assert caught.value.value is value
    with pytest.raises(NotStorableError) as caught:
        encode({"items": [0, 1, 2, value]}, declared)
    assert str(caught.value).startswith("value['items'][3] is ")
    assert "canary" not in str(caught.value)


class _OddZone(tzinfo):
    def utcoffset(self, dt: datetime | None) -> timedelta | None:
        return None if dt is None else timedelta(hours=1)


def test_an_open_file_and_a_coroutine_are_refused(tmp_path):
    with (tmp_path / "f").open("w") as file, pytest.raises(NotStorableError, match="TextIOWrapper"):
        encode(file)
    pending = _coroutine()
    with pytest.raises(NotStorableError, match="coroutine"):
        encode({"a": pending})
    pending.close()


def test_whatever_reading_a_value_raises_is_a_refusal():
    class Moody(tzinfo):
        def utcoffset(self, dt: datetime | None) -> timedelta:
            raise OSError("canary")

    @attrs.define(slots=False)
    class Broken:
        a: int

    Broken.a = property(lambda self: 1 / 0)  # type: ignore[assignment,method-assign]
    for value in (datetime(2026, 1, 1, tzinfo=Moody()), Broken.__new__(Broken)):
        with pytest.raises(NotStorableError, match="could not be read") as caught:
            encode([value], list[Broken])
        assert "canary" not in str(caught.value)


def test_places_inside_objects_and_odd_maps_are_named():
    with pytest.raises(NotStorableError, match=r"^value\.reason\['x'\] is a builtins.object"):
        encode(Refund(UUID(int=1), {"x": object()}), Refund)
    with pytest.raises(NotStorableError, match=r"^value\[a int as key\] is a builtins.object"):
        encode({1: object()})
    with pytest.raises(NotStorableError, match=r"^value\.line is a builtins.object"):
        encode(Customer.model_construct(name="x", line=object()), Customer)


def test_cycles_and_depth_are_refused():
    twice: list[Any] = []
    twice += [twice, twice]
    loop: dict[str, Any] = {"t": (1,)}
    loop["self"] = loop
    refund = Refund(UUID(int=1))
    refund.reason = refund
    for value in (twice, loop, refund):
        with pytest.raises(NotStorableError, match="contains itself"):
            encode(value, Refund)
    for wrap in (lambda v: [v], lambda v: {"a": v}, lambda v: (v,), lambda v: {1: v}):
        nested: Any = 1
        for _ in range(MAX_DEPTH):
            nested = wrap(nested)
        assert decode(encode(nested)) == nested
        with pytest.raises(NotStorableError, match="nested more than 100 levels"):
            encode(wrap(nested))
        for _ in range(5000):
            nested = wrap(nested)
        with pytest.raises(NotStorableError, match="nested more than 100 levels"):
            encode(nested)


def test_a_subclass_of_a_builtin_keeps_its_attributes():
    hits = Hits([1, 2], total=9)
    word = Word("mot")
    word.language = LINE
    again = decode(encode((hits, word), tuple[Hits, Word, Line]), tuple[Hits, Word, Line])
    assert again == (hits, word)
    assert (type(again[0]), again[0].total, hasattr(again[0], "cursor")) == (Hits, 9, False)
    assert (type(again[1]), again[1].language) == (Word, LINE)


def test_a_class_that_does_not_accept_its_own_content_says_what_to_return():
    """Its factory is no content. The advice for a class that changed since would be of no use."""
    with pytest.raises(NotStorableError, match=r"a defaultdict that .*return plain data") as told:
        JsonCodec().encode(collections.defaultdict(int, a=1), collections.defaultdict)
    assert "defaults" not in str(told.value)


def test_a_subclass_of_a_builtin_with_an_attribute_that_cannot_be_stored_is_refused():
    word = Word("mot")
    word.language = object()
    with pytest.raises(NotStorableError, match=r"value\.language is a builtins\.object"):
        encode(word, Word)


def test_a_zone_whose_name_is_not_unicode_is_refused():
    zone = timezone(timedelta(hours=1), "\ud800")
    with pytest.raises(NotStorableError, match="without a name or a fixed offset"):
        encode(datetime(2026, 1, 1, tzinfo=zone))


# -- hostile bytes ----------------------------------------------------------------------------


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("a stored pickle was run",)


def tagged(**node: Any) -> bytes:
    return b"t" + json.dumps({"$": node.pop("tag"), **node}).encode()


HOSTILE = [
    b"", b"j", b"t", b"x{}", b"\x80\x04N.", b"J1", b"j{", b"j1 2", b"jnul", b'j"\xff"', b'j"\\ud800"', b"jNaN", b"j1e999",
    b"j" + b"9" * 100_000, b"j" + b"[" * 100_000, b"t" + b"[" * 100_000, b"j" + b"[" * 100_000 + b"]" * 100_000,
    b"t" + b'{"a":' * 100_000, b"t" + b"[" * 300 + b"]" * 300, b"t" + b'{"$":"tuple","v":[' * 150 + b"]}" * 150,
    pickle.dumps(1), pickle.dumps(Bomb()), b"j" + pickle.dumps(Bomb()), b"t" + pickle.dumps(Bomb()),
    tagged(tag="nope"), tagged(tag=None), tagged(tag=1), tagged(tag=[]), tagged(tag={}), tagged(tag="tuple"),
    tagged(tag="tuple", v=1), tagged(tag="tuple", v={}), tagged(tag="tuple", v="ab"), tagged(tag="set", v=[[]]), tagged(tag="map", v=[[1]]),
    tagged(tag="map", v=[[[], 1]]), tagged(tag="map", v=[1]), tagged(tag="map", v={"a": 1}),
    tagged(tag="int", v="zz"), tagged(tag="int", v=5), tagged(tag="float", v="x"), tagged(tag="float", v=1.5),
    tagged(tag="bytes", v="*"), tagged(tag="bytes", v="YQ"), tagged(tag="bytes", v=1), tagged(tag="bytes", v="é"), tagged(tag="text", v="/w=="),
    tagged(tag="decimal", v="one"), tagged(tag="decimal", v=1.5), tagged(tag="decimal", v=[0, [1], 2]),
    tagged(tag="uuid", v="x"), tagged(tag="uuid", v=5), tagged(tag="uuid"),
    tagged(tag="date", v="2026-13-01"), tagged(tag="date", v=5), tagged(tag="time", v="25:00"), tagged(tag="datetime", v="today"),
    tagged(tag="datetime", v="2026-01-01", z="../../etc/passwd"), tagged(tag="datetime", v="2026-01-01", z="/etc/passwd"),
    tagged(tag="datetime", v="2026-01-01", z="No/Where"), tagged(tag="datetime", v="2026-01-01", z="os.path"), tagged(tag="datetime", v="2026-01-01", z=""),
    tagged(tag="datetime", v="2026-01-01", z="a" * 10_000), tagged(tag="datetime", v="2026-01-01", z=5), tagged(tag="datetime", v="2026-01-01", z="Europe"),
    tagged(tag="datetime", v="2026-01-01", o=10**20), tagged(tag="datetime", v="2026-01-01", o="1"), tagged(tag="datetime", v="2026-01-01", o=0, n=5),
    tagged(tag="datetime", v="2026-01-01", f=7), tagged(tag="datetime", v="2026-01-01", f="x"),
    tagged(tag="timedelta", v=[10**12, 0, 0]), tagged(tag="timedelta", v=["a"]), tagged(tag="timedelta", v=[1] * 20), tagged(tag="timedelta", v=5),
    tagged(tag="object", c="os.system", v={}), tagged(tag="object", c="subprocess.Popen", v={"args": "true"}), tagged(tag="object", c="Bomb", v={}),
    tagged(tag="object", c="Customer", v={}), tagged(tag="object", c="Line", v={}), tagged(tag="object", c="Line", v=[]), tagged(tag="object", c="Line"), tagged(tag="object", c=["Line"], v={}),
    tagged(tag="object", c="Line", v={"sku": 1, "price": 2}, s=5), tagged(tag="object", c="Color", v={}), tagged(tag="object", v={}), tagged(tag="object", c="Tag", v={}),
    tagged(tag="object", c="Customer", v={"name": "x"}, s={"unset": 5}), tagged(tag="object", c="Customer", v={"name": "x"}, s={"private": 5}),
    tagged(tag="enum", c="Color", v="NOPE"), tagged(tag="enum", c="Color", v="__class__"), tagged(tag="enum", c="Color", v=["RED"]), tagged(tag="enum", c="Line", v="RED"), tagged(tag="enum", c="Bits", v="A"),
    tagged(tag="enum", c="Color", v="mro"), tagged(tag="model", c="Line", v={}), tagged(tag="model", c="Site", v={"url": 5}), tagged(tag="model", c="Color", v=1),
    tagged(tag="based", c="Line", v={}), tagged(tag="based", c="Stack", v=5), tagged(tag="based", c="str", v=5),
    tagged(tag="based", c="Stack", v=[], s=5), tagged(tag="based", c="Stack", v=[], s={"__class__": 5}), tagged(tag="based", c="Stack", v=[], s={"__dict__": {}}), tagged(tag="based", c="Tag", v="x", s={"a": 1}),
    b'j{"py/object": "os.system"', b't{"py/reduce": [',
]  # fmt: skip

EVERYTHING = Line | Order | Customer | Site | Color | Bits | Tag | Stack | None


@pytest.mark.parametrize("payload", HOSTILE, ids=lambda p: ascii(p[:40]))
@pytest.mark.parametrize("declared", [Any, EVERYTHING], ids=["Any", "declared"])
def test_bytes_that_make_no_sense_are_a_clean_error(payload, declared):
    with pytest.raises(CorruptRecordError):
        decode(payload, declared)


def test_foreign_tags_are_plain_data():  # jsonpickle, celery: CVE-2021-23727
    for data in (
        {"py/object": "subprocess.Popen", "args": ["true"]},
        {"exc_type": "system", "exc_module": "os", "exc_message": "true"},
        {"__class__": "os.system", "__reduce__": ["os.system", ["true"]]},
    ):
        assert decode(b"j" + json.dumps(data).encode(), EVERYTHING) == data
        assert decode(b"t" + json.dumps(data).encode(), EVERYTHING) == data


@given(st.binary(max_size=60), st.sampled_from([b"", b"j", b"t"]))
def test_random_bytes_decode_or_are_corrupt(noise, version):
    with contextlib.suppress(CorruptRecordError):
        decode(version + noise, EVERYTHING)


json_trees = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(max_size=4)
    | st.sampled_from(["Line", "Order", "Customer", "Color", "Tag", "Stack", "Bits", "RED", "UTC", "2026-01-01"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["$", "v", "c", "s", "z", "o", "n", "f", "sku", "name"]), inner, max_size=4)
    | st.builds(
        lambda tag, c, v: {"$": tag, "c": c, "v": v},
        st.sampled_from(["map", "tuple", "set", "object", "model", "based", "enum", "int", "float", "bytes", "decimal", "uuid", "datetime", "time", "timedelta", "text"]),
        st.sampled_from(["Line", "Order", "Customer", "Site", "Color", "Tag", "Stack", "Bits"]),
        inner,
    ),
    max_leaves=10,
)  # fmt: skip


@given(json_trees)
def test_any_tree_of_tags_decodes_or_is_corrupt(tree):
    with contextlib.suppress(CorruptRecordError):
        decode(b"t" + msgspec.json.encode(tree), EVERYTHING)


def test_errors_never_show_the_payload():
    for payload in (b"jcanary", b'j"canary', tagged(tag="decimal", v="canary"), b"canary"):
        with pytest.raises(CorruptRecordError) as caught:
            decode(payload)
        assert "canary" not in str(caught.value)


PACKAGE = Path(inspect.getfile(JsonCodec)).parent


def test_the_source_knows_no_pickle_and_imports_nothing_by_name():
    for file in (*PACKAGE.glob("*.py"), PACKAGE.parent / "object_fields.py"):
        tree = ast.parse(file.read_text("utf-8"))
        imported = {
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for alias in node.names
        } | {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not imported & {
            "pickle",
            "marshal",
            "shelve",
            "importlib",
            "pydantic",
            "attrs",
            "attr",
        }
        called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}  # fmt: skip
        assert not called & {"eval", "exec", "__import__", "compile"}


def test_neither_pydantic_nor_attrs_is_loaded_by_us():
    script = (
        "import sys; from twicesafe._values.codecs import DEFAULT_CODEC as c; import decimal\n"
        "c.decode(c.encode({'a': (decimal.Decimal(1),)}))\n"
        "assert not {'pydantic', 'attr', 'attrs', 'pickle'} & set(sys.modules)"
    )
    subprocess.run(
        [sys.executable, "-c", script], check=True, env={"PYTHONPATH": ":".join(sys.path)}
    )


# -- the protocol and the annotation ----------------------------------------------------------


def test_a_codec_is_anything_with_the_two_methods():
    class Mine:
        def encode(self, value: Any, declared: Any = Any) -> bytes:
            return b""

        def decode(self, payload: bytes, declared: Any = Any) -> Any:
            return None

    assert isinstance(DEFAULT_CODEC, Codec)
    assert isinstance(Mine(), Codec)
    assert not isinstance(object(), Codec)


def returns_order(a: int) -> Order: ...  # type: ignore[empty-body]
def returns_text_annotation(a: Missing) -> list[Order]: ...  # type: ignore[empty-body,name-defined]  # noqa: F821
def returns_unknown() -> Missing: ...  # type: ignore[name-defined]  # noqa: F821
def returns_nothing_said(a): ...
def returns_none() -> None: ...
async def async_order() -> Order: ...  # type: ignore[empty-body]
def hands_out_awaitable() -> Awaitable[Order]: ...  # type: ignore[empty-body]
def hands_out_coroutine() -> Coroutine[Any, Any, list[Order]]: ...  # type: ignore[empty-body]
def with_extras() -> Annotated[Order, "x"]: ...  # type: ignore[empty-body]


class Service:
    def method(self) -> Order: ...  # type: ignore[empty-body]

    @classmethod
    def of_class(cls) -> Order: ...  # type: ignore[empty-body]

    @staticmethod
    def static() -> Order: ...  # type: ignore[empty-body]

    def __call__(self) -> Refund: ...  # type: ignore[empty-body]


@functools.wraps(returns_order)
def wrapped(*args: Any) -> Any: ...


# A decorator from a module that does not know the word `Order`.
_elsewhere: dict[str, Any] = {"functools": functools}
exec(
    "def decorate(f):\n @functools.wraps(f)\n def inner(*a): return f(*a)\n return inner",
    _elsewhere,
)


@pytest.mark.parametrize(
    "handler,expected",
    [
        (returns_order, Order),
        (returns_text_annotation, list[Order]),
        (returns_unknown, Any),
        (returns_nothing_said, Any),
        (returns_none, type(None)),
        (async_order, Order),
        (hands_out_awaitable, Order),
        (hands_out_coroutine, list[Order]),
        (with_extras, Annotated[Order, "x"]),
        (Service().method, Order),
        (Service.method, Order),
        (Service.of_class, Order),
        (Service.static, Order),
        (Service(), Refund),
        (Order, Order),
        (functools.partial(returns_order, 1), Order),
        (functools.partial(functools.partial(Service().method)), Order),
        (wrapped, Order),
        (_elsewhere["decorate"](returns_order), Order),
        (functools.lru_cache(returns_order), Any),
        (lambda: 1, Any),
        (len, Any),
        (print, Any),
        (object(), Any),
    ],
)
def test_return_types(handler: Callable[..., Any], expected):
    for _ in range(2):  # the second answer comes from the cache
        assert resolve_return_type(handler) == expected


def test_each_closure_has_its_own_local_classes():
    def make() -> tuple[type, Callable[[], Any]]:
        @dataclass
        class Local:
            a: int

        def handler() -> list[Local]:
            return [Local(1)]

        return Local, handler

    for _ in range(3):
        local, handler = make()
        assert resolve_return_type(handler) == list[local]
        comes_back(handler(), resolve_return_type(handler))


def test_the_cache_is_bounded():
    from twicesafe._values.codecs import annotations

    for n in range(3000):
        space: dict[str, Any] = {}
        exec(f"def f() -> 'int': return {n}", space)
        assert resolve_return_type(space["f"]) is int
    assert len(annotations._returns) <= 2048


def test_equal_code_with_another_annotation_is_not_mixed_up():
    one: dict[str, Any] = {"X": int}
    two: dict[str, Any] = {"X": str}
    for space in (one, two):
        exec("def f() -> 'X': ...", space)
    assert resolve_return_type(one["f"]) is int
    assert resolve_return_type(two["f"]) is str
    assert resolve_return_type(one["f"]) is int
