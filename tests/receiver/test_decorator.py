"""`@receiver.idempotent`: keeps what a function is, and never mixes up whose answer is whose."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from typing import Any

import pytest

from tests.receiver.bench import Bench, Counter
from twicesafe import (
    AsyncReceiver,
    ConfigurationError,
    FingerprintMismatchError,
    InvalidKeyError,
    Key,
    MissingKeyError,
    Outcome,
    Receiver,
    UsageError,
)
from twicesafe._core.handler_profile import profile_of
from twicesafe.stores.memory import AsyncMemoryStore, MemoryStore


@pytest.fixture
def receiver() -> Receiver:
    return Receiver(MemoryStore())


@pytest.fixture
def async_receiver() -> AsyncReceiver:
    return AsyncReceiver(AsyncMemoryStore())


def test_arguments_of_which_no_key_can_be_made_say_that_key_is_the_way_out(receiver: Receiver):
    @receiver.idempotent(scope=("reports",))
    def report(session: object, month: int) -> int:
        return month

    with pytest.raises(UsageError, match=r"value\['session'\] is a builtins.object.* as key= or"):
        report(object(), 3)


def test_returns_the_plain_value_and_runs_once(bench: Bench) -> None:
    counter = Counter({"id": 7})
    charge = bench.idempotent(counter.quick, key=lambda order: order["id"], scope=("charge",))
    assert charge({"id": "a"}) == {"id": 7}
    assert charge({"id": "a"}) == {"id": 7}
    assert counter.runs == 1
    charge({"id": "b"})
    assert counter.runs == 2


def test_key_may_name_a_parameter_given_either_way(bench: Bench) -> None:
    runs: list[str] = []

    def charge(order_id: str, amount: int = 1) -> int:
        runs.append(order_id)
        return amount

    safe = bench.idempotent(charge, key="order_id")
    assert [safe("a", 5), safe(order_id="a"), safe(amount=9, order_id="a")] == [5, 5, 5]
    assert runs == ["a"]


def test_without_a_key_equal_arguments_are_equal_calls(bench: Bench) -> None:
    runs: list[tuple[int, int]] = []

    def add(a: int, b: int = 2) -> int:
        runs.append((a, b))
        return a + b

    safe = bench.idempotent(add)
    assert [safe(1), safe(1, 2), safe(b=2, a=1), safe(a=1)] == [3, 3, 3, 3]
    assert safe(2) == 4
    assert runs == [(1, 2), (2, 2)]


def test_signature_and_documentation_are_kept(
    receiver: Receiver, async_receiver: AsyncReceiver
) -> None:
    def charge(order: dict[str, str], *, amount: int = 3) -> str:
        """Take the money."""
        return "ok"

    async def acharge(order: dict[str, str], *, amount: int = 3) -> str:
        """Take the money."""
        return "ok"

    for function, decorate in ((charge, receiver.idempotent), (acharge, async_receiver.idempotent)):
        safe: Any = decorate(function)  # type: ignore[operator]
        assert inspect.signature(safe) == inspect.signature(function)
        assert safe.__doc__ == "Take the money."
        assert safe.__name__ == function.__name__
        assert safe.__wrapped__ is function
    assert inspect.iscoroutinefunction(async_receiver.idempotent(acharge))


RUNS: list[str] = []
"""Not a variable of a test: a decorated closure would need a scope."""


def test_methods_static_and_class_methods(receiver: Receiver) -> None:
    RUNS.clear()

    class Shop:
        @receiver.idempotent(key="order")
        def buy(self, order: str) -> str:
            RUNS.append("buy")
            return f"bought {order}"

        @receiver.idempotent(key="order")
        @staticmethod
        def send(order: str) -> str:
            RUNS.append("send")
            return f"sent {order}"

        @staticmethod
        @receiver.idempotent(key="order")
        def post(order: str) -> str:
            RUNS.append("post")
            return f"posted {order}"

        @receiver.idempotent(key="order")
        @classmethod
        def make(cls, order: str) -> str:
            RUNS.append("make")
            return f"{cls.__name__} made {order}"

        @classmethod
        @receiver.idempotent(key="order")
        def build(cls, order: str) -> str:
            RUNS.append("build")
            return f"{cls.__name__} built {order}"

    for _ in range(2):
        shop = Shop()
        assert shop.buy("1") == "bought 1"
        assert shop.send("1") == Shop.send("1") == "sent 1"
        assert shop.post("1") == "posted 1"
        assert Shop.make("1") == "Shop made 1"
        assert shop.build("1") == "Shop built 1"
    assert RUNS == ["buy", "send", "post", "make", "build"]


async def test_async_methods(async_receiver: AsyncReceiver) -> None:
    RUNS.clear()

    class Shop:
        @async_receiver.idempotent(key="order")
        async def buy(self, order: str) -> str:
            RUNS.append(order)
            return order

        @async_receiver.idempotent(key="order")
        @staticmethod
        async def send(order: str) -> str:
            RUNS.append(order)
            return order

    for _ in range(2):
        assert await Shop().buy("a") == "a"
        assert await Shop.send("b") == "b"
    assert RUNS == ["a", "b"]


def test_partials_count_what_they_carry(bench: Bench) -> None:
    runs: list[tuple[str, int]] = []

    def pay(currency: str, amount: int) -> str:
        runs.append((currency, amount))
        return f"{amount} {currency}"

    inner = bench.in_mode(pay)
    euro = bench.idempotent(functools.partial(inner, "EUR"))
    dollar = bench.idempotent(functools.partial(inner, "USD"))
    yen = bench.idempotent(functools.partial(inner, currency="JPY"))
    assert [euro(5), euro(5), dollar(5), yen(amount=5)] == ["5 EUR", "5 EUR", "5 USD", "5 JPY"]
    assert runs == [("EUR", 5), ("USD", 5), ("JPY", 5)]


def test_partials_keep_their_signature(receiver: Receiver) -> None:
    def pay(currency: str, amount: int) -> int:
        return amount

    part = functools.partial(pay, "EUR")
    assert inspect.signature(receiver.idempotent(part)) == inspect.signature(part)


def test_callable_objects(receiver: Receiver) -> None:
    class Charge:
        runs = 0

        def __call__(self, order: str) -> str:
            self.runs += 1
            return order

    charge = Charge()
    safe = receiver.idempotent(charge, scope=("charge",))
    assert [safe("a"), safe("a")] == ["a", "a"]
    assert charge.runs == 1


def test_async_functions_are_refused_by_the_blocking_receiver(bench: Bench) -> None:
    async def work() -> int:
        return 1

    class Callable:
        async def __call__(self) -> int:
            return 1

    store = MemoryStore()
    receiver = Receiver(store)
    for handler in (work, functools.partial(work), Callable(), Callable().__call__):
        for attempt in (
            lambda h=handler: receiver.process("k", h),
            lambda h=handler: receiver.process_many([1], h, key=str),
            lambda h=handler: receiver.idempotent(h, scope=("work",)),
        ):
            with pytest.raises(UsageError, match="AsyncReceiver"):
                attempt()
    assert receiver.record("k") is None
    assert receiver.stats().total == 0


def test_a_coroutine_in_disguise_is_refused_and_nothing_recorded_as_done() -> None:
    async def work() -> int:
        return 1

    receiver = Receiver(MemoryStore())
    with pytest.raises(UsageError, match="AsyncReceiver"):
        receiver.process("k", lambda: work())  # noqa: PLW0108 - a disguise
    record = receiver.record("k")
    assert record is not None
    assert record.state == "released"


async def _effect(message: Any = None) -> int:
    return 1


async def test_work_that_is_still_to_be_done_is_no_answer(
    receiver: Receiver, async_receiver: AsyncReceiver
) -> None:
    """An async handler that forgot an await was recorded as completed, though nothing had run."""

    async def forgets(message: Any = None) -> Any:
        return _effect(message)

    with pytest.raises(UsageError, match="work has not run"):
        receiver.process("k", lambda: _effect())  # noqa: PLW0108 - a disguise
    with pytest.raises(UsageError, match="work has not run"):
        await async_receiver.process("k", forgets)
    with pytest.raises(UsageError, match="work has not run"), receiver.claim("c") as claim:
        claim.complete(_effect())
    with pytest.raises(UsageError, match="work has not run"):
        async with async_receiver.claim("c") as waiting:
            await waiting.complete(_effect())
    disguised = lambda message: _effect(message)  # noqa: E731, PLW0108
    (failure,) = receiver.process_many([1], disguised, key=lambda m: f"m{m}")
    assert isinstance(failure.error, UsageError)  # type: ignore[union-attr]
    (failure,) = await async_receiver.process_many([1], forgets, key=lambda m: f"m{m}")
    assert isinstance(failure.error, UsageError)  # type: ignore[union-attr]
    for key in ("k", "c", "m1"):
        for record in (receiver.record(key), await async_receiver.record(key)):
            assert record is None or record.state != "completed"
    assert (await async_receiver.process("k", _effect)).value == 1


def test_plain_functions_are_refused_by_the_async_decorator(async_receiver: AsyncReceiver) -> None:
    def work() -> int:
        return 1

    with pytest.raises(UsageError, match="use Receiver"):
        async_receiver.idempotent(work)  # type: ignore[arg-type]


async def test_generators_are_refused(receiver: Receiver, async_receiver: AsyncReceiver) -> None:
    def items() -> Any:
        yield 1

    async def aitems() -> Any:
        yield 1

    for generator in (items, aitems):
        for attempt in (
            lambda g=generator: receiver.process("k", g),
            lambda g=generator: receiver.idempotent(g),
            lambda g=generator: async_receiver.idempotent(g),
        ):
            with pytest.raises(UsageError, match=r"generator.*collect the items"):
                attempt()
        with pytest.raises(UsageError, match="generator"):
            await async_receiver.process("k", generator)
    assert receiver.stats().total == 0


def test_equal_bare_names_never_share_keys(receiver: Receiver) -> None:
    class A:
        @receiver.idempotent(key="id")
        def run(self, id: str) -> str:  # noqa: A002
            return "A"

    class B:
        @receiver.idempotent(key="id")
        def run(self, id: str) -> str:  # noqa: A002
            return "B"

    @receiver.idempotent(key="id")
    def run(id: str) -> str:  # noqa: A002
        return "function"

    assert [A().run("1"), B().run("1"), run("1")] == ["A", "B", "function"]


@pytest.mark.parametrize("absolute", [False, True])
def test_functions_share_a_ready_key_only_if_it_is_absolute(
    receiver: Receiver, absolute: bool
) -> None:
    def ready(message: str) -> Key:
        return Key(message, ("order.paid",), absolute=absolute)

    @receiver.idempotent(key=ready)
    def bill(message: str) -> str:
        return "billed"

    @receiver.idempotent(key=ready)
    def mail(message: str) -> str:
        return "mailed"

    assert [bill("1"), mail("1")] == ["billed", "billed" if absolute else "mailed"]


def test_the_receivers_own_scope_stays_in_front(bench: Bench) -> None:
    counter = Counter()

    def charge(id: str) -> int:  # noqa: A002
        counter.quick()
        return counter.runs

    tenants = [bench.receiver.options(scope=(name,)) for name in ("a", "b")]
    functions = [
        tenant.idempotent(key="id", scope=("charge",))(bench.in_mode(charge)) for tenant in tenants
    ]
    assert [bench.call(function, "1") for function in functions] == [1, 2]
    assert [bench.call(function, "1") for function in functions] == [1, 2]


def test_each_decorator_keeps_its_own_settings(bench: Bench) -> None:
    def a(id: str, x: int) -> int:  # noqa: A002
        return x

    def b(id: str, x: int) -> int:  # noqa: A002
        return x

    checked = bench.idempotent(a, key="id", fingerprint=True)
    unchecked = bench.idempotent(b, key="id")
    assert (checked("1", 1), unchecked("1", 1)) == (1, 1)
    with pytest.raises(FingerprintMismatchError):
        checked("1", 2)
    assert unchecked("1", 2) == 1


@pytest.mark.parametrize("pair", ["wrapped", "defaults", "closures", "methods"])
def test_functions_with_one_code_keep_their_own_profile(bench: Bench, pair: str) -> None:
    """Wrappers, closures and bound methods share code objects, but not signatures."""

    def logged(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return function(*args, **kwargs)

        return wrapper

    def one(x):
        return ["one", x]

    def two(a, b=5):
        return ["two", a, b]

    def with_default(y):
        def function(x, y=y):
            return [x, y]

        return function

    class Thing:
        def handle(self, x):
            return ["thing", x]

    first, second, call = {
        "wrapped": (logged(one), logged(two), (1, 2)),
        "defaults": (with_default(1), with_default(2), (1,)),
        "closures": (lambda x: x, lambda x: [x], (1,)),
        "methods": (Thing().handle, Thing.handle, ({}, 1)),
    }[pair]
    bench.receiver = bench.receiver.options(fingerprint=True)
    bench.process("first", first, 1)
    expected = second(*call)
    assert bench.process("second", second, *call).value == expected
    assert bench.process("second", second, *call).replayed
    with pytest.raises(FingerprintMismatchError):
        bench.process("second", second, *call[:-1], 99)


def test_return_types_of_closures_are_not_mixed_up(bench: Bench) -> None:
    def make(cls: type) -> Any:
        def handler():
            return cls("1")

        handler.__annotations__["return"] = cls
        return handler

    class Text(str):
        __slots__ = ()

    class Word(str):
        __slots__ = ()

    for number in range(20):
        for cls in (Text, Word, str):
            key = f"{number}{cls.__name__}"
            bench.process(key, make(cls))
            assert type(bench.process(key, make(cls)).value) is cls


MODULE = """
from __future__ import annotations
from dataclasses import dataclass

@dataclass
class Order:
    id: int

def handle(number) -> Order:
    return Order(number)

def handle_all(number) -> list[Order]:
    return [Order(number)]
"""


def test_return_types_of_equal_modules_are_not_mixed_up(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their code compares equal, but the same word means another class in each."""
    for number in range(3):
        module: Any = types.ModuleType(f"shop_{number}")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        exec(compile(MODULE, f"{module.__name__}.py", "exec"), module.__dict__)
        for _ in range(2):
            order = receiver.process(f"one of {number}", module.handle, 7).value
            orders = receiver.process(f"all of {number}", module.handle_all, 7).value
            assert type(order) is type(orders[0]) is module.Order


def test_settings_that_make_no_sense(receiver: Receiver) -> None:
    def charge(order: str) -> str:
        return order

    with pytest.raises(ConfigurationError, match=r"'ordr' is not a parameter.*order"):
        receiver.idempotent(key="ordr")(charge)
    with pytest.raises(ConfigurationError, match="must decorate a function"):
        receiver.idempotent(key="x")(42)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="lambda"):
        receiver.idempotent(lambda: 1)
    with pytest.raises(MissingKeyError):
        receiver.idempotent(key=lambda order: None)(charge)("a")  # type: ignore[arg-type, return-value]


def test_a_method_needs_a_key_because_self_is_not_one(receiver: Receiver) -> None:
    with pytest.raises(ConfigurationError, match="key="):

        class Account:
            @receiver.idempotent
            def pay(self, cents: int) -> int:
                return cents


class Shop:
    def __init__(self, tenant: str) -> None:
        self.tenant = tenant

    def charge(self, order: str) -> str:
        return f"{self.tenant} {order}"

    __call__ = charge

    @classmethod
    def refund(cls, order: str) -> str:
        return order


def of_tenant(tenant: str) -> Any:
    def charge(order: str) -> str:
        return f"{tenant} {order}"

    return charge


def logged(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


def local_function() -> Any:
    def charge(order: str, currency: None = None) -> str:
        return order

    return charge


def module_level(order: str) -> str:
    return order


def by_default(tenant: str) -> Any:
    def charge(order: str, tenant: str = tenant) -> str:
        return f"{tenant} {order}"

    return charge


def by_keyword_default(tenant: str) -> Any:
    def charge(order: str, *, currency: None = None, tenant: str = tenant) -> str:
        return f"{tenant} {order}"

    return charge


def wrapping(tenant: str, function: Any = module_level) -> Any:
    @functools.wraps(function)
    def wrapper(order: str) -> str:
        return f"{tenant} {function(order)}"

    return wrapper


def wrapping_by_default(tenant: str) -> Any:
    @functools.wraps(module_level)
    def wrapper(order: str, tenant: str = tenant) -> str:
        return f"{tenant} {order}"

    return wrapper


def by_namespace(tenant: str) -> Any:
    namespace: dict[str, Any] = {"tenant": tenant, "__name__": "plugin"}
    exec("def charge(order): return f'{tenant} {order}'", namespace)
    return namespace["charge"]


CARRIES = {
    "a default": by_default,
    "a keyword default": by_keyword_default,
    "a wrapper": wrapping,
    "a wrapper of a local function": lambda tenant: wrapping(tenant, local_function()),
    "a wrapper inside another": lambda tenant: logged(wrapping(tenant)),
    "a wrapper's default": wrapping_by_default,
    "a namespace of exec": by_namespace,
    "a closure": of_tenant,
    "a wrapped closure": lambda tenant: logged(of_tenant(tenant)),
    "a method of an object": lambda tenant: Shop(tenant).charge,
    "an object": Shop,
    "a partial": lambda tenant: functools.partial(
        lambda tenant, order: f"{tenant} {order}", tenant
    ),
    "a lambda": lambda tenant: lambda order: f"{tenant} {order}",
}


def retried(times: int) -> Any:
    def wrap(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any) -> Any:
            return [function(*args) for _ in range(times)][-1]

        return wrapper

    return wrap


@Receiver.open("memory://").idempotent(key=str)
@retried(times=2)  # there is one of that name, because the module runs once
def decorated(order: str, currency: str = "EUR") -> str:
    return order


@pytest.mark.parametrize("make", CARRIES.values(), ids=CARRIES)
def test_what_a_function_carries_with_it_must_be_in_its_scope(
    receiver: Receiver, make: Any
) -> None:
    """Two closures of one factory have one name: tenant B would get the answer of tenant A."""
    with pytest.raises(ConfigurationError, match=r"depends on .* pass scope="):
        receiver.idempotent(key=str)(make("a"))
    charges = [receiver.idempotent(key=str, scope=(tenant,))(make(tenant)) for tenant in "ab"]
    assert [charge("1") for charge in charges] == ["a 1", "b 1"]


@pytest.mark.parametrize(
    "function",
    [module_level, logged(module_level), Shop.refund, Shop, local_function()],
    ids=lambda f: f.__name__,
)
def test_what_a_name_says_all_about_needs_no_scope(receiver: Receiver, function: Any) -> None:
    receiver.idempotent(key=str)(function)


def test_outcome_true_returns_the_outcome(bench: Bench) -> None:
    counter = Counter({"id": 7})
    charge = bench.idempotent(counter.quick, key=lambda order: order, scope=("c",), outcome=True)
    first, second = charge("a"), charge("a")
    assert (first.value, first.replayed, first.attempt) == ({"id": 7}, False, 1)
    assert (second.value, second.replayed) == ({"id": 7}, True)
    assert first.key == second.key
    assert counter.runs == 1


@pytest.mark.parametrize("key", [("tenant", "id"), 7, ["id"], b"id"])
@pytest.mark.parametrize("make", ["idempotent", "durable"])
def test_a_key_is_a_name_or_a_function(receiver: Receiver, key: Any, make: str) -> None:
    """Not only when it is called."""

    def charge(tenant: str, id: str) -> None: ...  # noqa: A002

    with pytest.raises(ConfigurationError, match=r"name of one parameter, or a function, such as"):
        getattr(receiver, make)(key=key)(charge)
    with pytest.raises(ConfigurationError, match=r"use a function, such as key=lambda"):
        receiver.process_many([{"id": 1}], str, key=key)


EARLY = """
from __future__ import annotations
from dataclasses import dataclass
from twicesafe import Receiver, Steps

receiver = Receiver.open("memory://")

@receiver.idempotent(key="id")
def charge(id: str) -> list[Receipt]:
    return [Receipt(id)]

@receiver.durable(key="id")
def checkout(steps: Steps, id: str, earlier: Receipt, unknown: OnlyForTypeCheckers = None) -> Receipt:
    return Receipt(steps.run("ship", str, earlier.id))

@dataclass
class Receipt:
    id: str

    @receiver.idempotent(key="id")
    @classmethod
    def of(cls, id: str) -> Receipt:
        return cls(id)
"""


@pytest.mark.parametrize("function", ["charge", "checkout", "of"])
def test_a_function_may_be_decorated_before_its_classes_are_defined(
    function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module: Any = types.ModuleType("early")
    monkeypatch.setitem(sys.modules, "early", module)
    exec(EARLY, module.__dict__)
    receipt = module.Receipt
    call = receipt.of if function == "of" else getattr(module, function)
    args = ("a", receipt("a")) if function == "checkout" else ("a",)
    wanted = [receipt("a")] if function == "charge" else receipt("a")
    assert call(*args) == call(*args) == wanted
    module.receiver.close()


def test_a_function_that_returns_the_outcome_says_so(receiver: Receiver) -> None:
    @receiver.idempotent(key="order", outcome=True)
    def charge(order: str) -> int:
        return 5

    assert charge.__annotations__["return"] == Outcome[Any]
    assert charge("a").value == 5

    class Shop:
        @staticmethod
        @receiver.idempotent(key="order", outcome=True)
        def buy(order: str) -> int:
            return 1

    assert Shop.buy("o").replayed is False
    assert Shop.buy("o").replayed is True


def test_a_scope_that_can_be_read_once_serves_every_function(receiver: Receiver) -> None:
    protect = receiver.idempotent(key="id", scope=(part for part in ("shop", "charge")))

    def first(id: str) -> str:  # noqa: A002
        return "first"

    def second(id: str) -> str:  # noqa: A002
        return "second"

    assert protect(first)("1") == "first"
    assert protect(second)("1") == "first"  # one scope is one key
    assert receiver.record(Key("1", scope=("shop", "charge"))) is not None


def test_a_scope_that_is_one_text_is_refused(receiver: Receiver) -> None:
    with pytest.raises(InvalidKeyError, match="write scope="):
        receiver.idempotent(key="id", scope="charge")


def test_a_function_that_is_changed_in_place_is_seen_as_it_is() -> None:
    """As a notebook does when it loads a module again."""
    profile = profile_of(_changing)
    assert profile.named((1,), {}) == {"a": 1}
    before = _changing.__code__
    try:
        _changing.__code__ = (lambda a, b: a).__code__
        assert profile_of(_changing).named((1, 2), {}) == {"a": 1, "b": 2}
    finally:
        _changing.__code__ = before


def _changing(a: int) -> int:
    return a
