"""Same key, other request: refused, naming fields and never values, even while the first runs (P11)."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.polling import until
from tests.receiver.bench import Bench, Counter
from tests.receiver.test_waiting import riders
from twicesafe import AsyncInbox, FingerprintMismatchError, Inbox, Receiver, UsageError
from twicesafe import events as ev
from twicesafe._core.http.fingerprint import http_fingerprint
from twicesafe._core.http.message import HttpRequest
from twicesafe._proxy.settings import load
from twicesafe.http import HttpPolicy

SECRET = "4000-1234-5678"


def charge(order: dict[str, Any]) -> str:
    return "charged"


def held_claim(bench: Bench) -> tuple[threading.Event, threading.Event]:
    """The next claim waits on its way until the test lets it go on."""
    asked, go_on = threading.Event(), threading.Event()

    def hold(request: Any) -> None:
        if request.op == "claim" and not asked.is_set():
            asked.set()
            assert go_on.wait(60)

    bench.store.before = (lambda r: asyncio.to_thread(hold, r)) if bench.is_async else hold
    return asked, go_on


def test_off_by_default(bench: Bench) -> None:
    bench.process("k", charge, {"amount": 1})
    assert bench.process("k", charge, {"amount": 2}).replayed


def test_true_compares_the_arguments_and_names_fields(bench: Bench) -> None:
    bench.receiver = bench.receiver.options(fingerprint=True)
    bench.process("k", charge, {"amount": 1, "card": SECRET, "to": "x"})
    assert bench.process("k", charge, {"to": "x", "card": SECRET, "amount": 1}).replayed
    with pytest.raises(FingerprintMismatchError) as caught:
        bench.process("k", charge, {"amount": 2, "card": SECRET + "9", "to": "x"})
    assert set(caught.value.fields) == {"amount", "card"}
    assert caught.value.http_status == 422
    assert SECRET not in str(caught.value)
    assert not caught.value.retryable
    assert bench.events(ev.Refused)[0].reason == "FingerprintMismatchError"


def test_several_arguments_are_named_by_parameter(bench: Bench) -> None:
    def pay(account: str, amount: int = 1) -> str:
        return "paid"

    bench.receiver = bench.receiver.options(fingerprint=True)
    bench.process("k", pay, "a", 1)
    assert bench.process("k", pay, account="a").replayed
    with pytest.raises(FingerprintMismatchError) as caught:
        bench.process("k", pay, "a", amount=2)
    assert caught.value.fields == ("amount",)


def test_a_callable_chooses_what_counts(bench: Bench) -> None:
    bench.receiver = bench.receiver.options(fingerprint=lambda order: {"amount": order["amount"]})
    bench.process("k", charge, {"amount": 1, "sent_at": 1})
    assert bench.process("k", charge, {"amount": 1, "sent_at": 2}).replayed
    with pytest.raises(FingerprintMismatchError) as caught:
        bench.process("k", charge, {"amount": 2, "sent_at": 2})
    assert caught.value.fields == ("amount",)


@pytest.mark.parametrize("length", [1, 255, 256, 300, 100_000])
def test_bytes_are_the_fingerprint(bench: Bench, length: int) -> None:
    blobs = [last.rjust(length, b"0") for last in (b"1", b"2")]
    one, two = (bench.receiver.options(fingerprint=blob) for blob in blobs)
    handler = bench.in_mode(charge)
    bench.call(one.process, "k", handler, {})
    assert bench.call(one.process, "k", handler, {"other": 1}).replayed
    with pytest.raises(FingerprintMismatchError) as caught:
        bench.call(two.process, "k", handler, {})
    assert caught.value.fields == ()


def test_long_bytes_are_one_fingerprint_however_they_are_given(bench: Bench) -> None:
    """Stores are asked to keep 255 bytes at most."""
    long = b"f" * 300
    bench.manual("k", lambda claim: "done", fingerprint=long)
    assert bench.call(
        bench.receiver.options(fingerprint=long).process, "k", bench.in_mode(charge), {}
    ).replayed
    with pytest.raises(FingerprintMismatchError):
        bench.manual("k", lambda claim: "done", fingerprint=long + b"f")
    assert {len(ask.fingerprint) for ask in bench.store.log if ask.op == "claim"} == {33}


def test_a_delivery_without_fingerprint_is_not_checked(bench: Bench) -> None:
    plain = bench.receiver
    bench.receiver = plain.options(fingerprint=True)
    bench.process("k", charge, {"amount": 1})
    bench.receiver = plain
    assert bench.process("k", charge, {"amount": 2}).replayed


@pytest.mark.parametrize("elsewhere", [False, True], ids=["this process", "another process"])
def test_refused_while_the_first_is_still_running(bench: Bench, elsewhere: bool) -> None:
    counter = Counter()
    bench.receiver = bench.receiver.options(fingerprint=True)
    first = bench.start(bench.process, "k", counter.slow, {"amount": 1})
    assert counter.entered.wait(60)
    second = bench.new_receiver(fingerprint=True) if elsewhere else bench.receiver
    with pytest.raises(FingerprintMismatchError):
        bench.call(second.process, "k", bench.in_mode(counter.slow), {"amount": 2})
    counter.go_on.set()
    assert first.result(120).value == "done"
    assert counter.runs == 1


def test_what_cannot_be_fingerprinted_is_refused_before_any_claim(bench: Bench) -> None:
    bench.receiver = bench.receiver.options(fingerprint=True)
    with pytest.raises(Exception, match="object"):
        bench.process("k", charge, object())
    assert bench.store.log == []


def test_the_fingerprint_outlives_failure_and_completion(bench: Bench) -> None:
    counter = Counter()
    bench.receiver = bench.receiver.options(fingerprint=True)
    with pytest.raises(ValueError, match="no luck"):
        bench.process("k", counter.failing, {"amount": 1})
    with pytest.raises(FingerprintMismatchError):
        bench.process("k", counter.quick, {"amount": 2})
    bench.process("k", counter.quick, {"amount": 1})
    with pytest.raises(FingerprintMismatchError):
        bench.process("k", counter.quick, {"amount": 2})
    assert counter.runs == 2


def test_who_waits_for_a_delivery_without_fingerprint_is_checked(bench: Bench) -> None:
    """The record knows the first request's, although the present worker has none."""
    plain, checked = bench.receiver, bench.receiver.options(fingerprint=True)
    counter = Counter()

    def fail(order: dict[str, Any]) -> str:
        raise ValueError("no luck")

    def work(order: dict[str, Any]) -> Any:
        return counter.slow()

    with pytest.raises(ValueError, match="no luck"):
        bench.call(checked.process, "k", bench.in_mode(fail), {"amount": 1})
    first = bench.start(bench.call, plain.process, "k", bench.in_mode(work), {"amount": 1})
    assert counter.entered.wait(60)
    duplicates = [
        bench.start(bench.call, checked.process, "k", bench.in_mode(charge), {"amount": amount})
        for amount in (1, 2, 1, 2)
    ]
    until(lambda: riders(bench) == 4)
    counter.go_on.set()
    assert first.result(120).value == "done"
    assert [duplicates[i].result(120).value for i in (0, 2)] == ["done", "done"]
    for i in (1, 3):
        with pytest.raises(FingerprintMismatchError) as caught:
            duplicates[i].result(120)
        assert caught.value.fields == ("amount",)
    assert counter.runs == 1


def test_a_wrong_request_on_its_way_does_not_refuse_the_right_one(bench: Bench) -> None:
    """Of two that differ, the record says which is wrong; not who of them asked first."""
    bench.receiver = bench.receiver.options(fingerprint=True)
    bench.process("k", charge, {"amount": 1})
    asked, go_on = held_claim(bench)
    wrong = bench.start(bench.process, "k", charge, {"amount": 2})
    assert asked.wait(60)
    assert bench.process("k", charge, {"amount": 1}).replayed
    go_on.set()
    with pytest.raises(FingerprintMismatchError):
        wrong.result(120)


def test_who_waits_for_a_replay_to_another_is_checked(bench: Bench) -> None:
    """Who asked without a fingerprint got the answer to the first request: it is not for all."""
    plain, checked = bench.receiver, bench.receiver.options(fingerprint=True)
    bench.call(checked.process, "k", bench.in_mode(charge), {"amount": 1})
    asked, go_on = held_claim(bench)
    first = bench.start(bench.call, plain.process, "k", bench.in_mode(charge), {"amount": 2})
    assert asked.wait(60)
    handler = bench.in_mode(charge)
    other = bench.start(bench.call, checked.process, "k", handler, {"amount": 2})
    same = bench.start(bench.call, checked.process, "k", handler, {"amount": 1})
    until(lambda: riders(bench) == 2)
    go_on.set()
    assert first.result(120).replayed
    assert same.result(120).replayed
    with pytest.raises(FingerprintMismatchError):
        other.result(120)


# --- one meaning of None, False and True, at every door ---------------------------------------


def is_checked(bench: Bench, receiver: Any, key: str) -> bool:
    process = receiver.process
    bench.call(process, key, bench.in_mode(charge), {"amount": 1})
    try:
        bench.call(process, key, bench.in_mode(charge), {"amount": 2})
    except FingerprintMismatchError:
        return True
    return False


def test_options_none_inherits_and_false_turns_it_off(bench: Bench) -> None:
    plain = bench.receiver
    checked = plain.options(fingerprint=True)
    assert not is_checked(bench, plain.options(fingerprint=None), "a")
    assert not is_checked(bench, plain.options(fingerprint=False), "b")
    assert is_checked(bench, checked, "c")
    assert is_checked(bench, checked.options(fingerprint=None), "d")
    assert is_checked(bench, checked.options(scope=("s",)), "e")
    assert not is_checked(bench, checked.options(fingerprint=False), "f")
    assert not is_checked(bench, checked.options(fingerprint=False).options(), "g")
    for top in (None, False):
        assert not is_checked(bench, bench.new_receiver(fingerprint=top), f"h {top}")
    assert is_checked(bench, bench.new_receiver(fingerprint=True), "i")


@pytest.mark.parametrize(
    "outer, inner, checked",
    [
        (None, None, False),
        (None, False, False),
        (None, True, True),
        (True, None, True),
        (True, False, False),
        (True, True, True),
        (False, True, True),
    ],
)
def test_the_decorator(bench: Bench, outer: Any, inner: Any, checked: bool) -> None:
    bench.receiver = bench.new_receiver(fingerprint=outer)
    decorated = bench.idempotent(charge, key=lambda order: "k", fingerprint=inner)
    decorated({"amount": 1})
    if checked:
        with pytest.raises(FingerprintMismatchError):
            decorated({"amount": 2})
    else:
        assert decorated({"amount": 2}) == "charged"


def test_a_claim(bench: Bench) -> None:
    def done(claim: Any) -> str:
        return "done"

    bench.manual("k", done, fingerprint={"amount": 1})
    with pytest.raises(FingerprintMismatchError):
        bench.manual("k", done, fingerprint={"amount": 2})
    assert bench.manual("k", done, fingerprint=None).result == "done"
    assert bench.manual("k", done, fingerprint=False).result == "done"
    with pytest.raises(UsageError, match="a claim has none: pass what to compare"):
        bench.manual("k", done, fingerprint=True)
    bench.receiver = bench.receiver.options(fingerprint=b"one")
    bench.manual("b", done)
    bench.receiver = bench.receiver.options(fingerprint=b"two")
    with pytest.raises(FingerprintMismatchError):
        bench.manual("b", done)
    assert bench.manual("b", done, fingerprint=False).result == "done"


async def test_an_inbox(tmp_path: Path) -> None:
    url, refused = f"sqlite:///{tmp_path}/keys.db", pytest.raises(UsageError, match="pass what to")
    file = sqlite3.connect(tmp_path / "keys.db", isolation_level=None)
    with closing(file) as connection, Inbox.open(url, fingerprint=True) as inbox:
        connection.execute("BEGIN IMMEDIATE")
        inbox.process(connection, "k", charge, {"amount": 1})
        with pytest.raises(FingerprintMismatchError):
            inbox.options(fingerprint=None).process(connection, "k", charge, {"amount": 2})
        off = inbox.options(fingerprint=False)
        assert off.process(connection, "k", charge, {"amount": 2}).replayed
        assert inbox.accept(connection, "a", fingerprint={"amount": 1})
        assert not inbox.accept(connection, "a")
        assert not inbox.accept(connection, "a", fingerprint=False)
        with pytest.raises(FingerprintMismatchError):
            inbox.accept(connection, "a", fingerprint={"amount": 2})
        with refused:
            inbox.accept(connection, "a", fingerprint=True)
        connection.execute("COMMIT")
    async with AsyncInbox.open(url) as other:
        with refused:
            await other.accept(None, "a", fingerprint=True)


@pytest.mark.parametrize(
    "how, checked", [(None, True), (True, True), ("canonical", True), (False, False)]
)
def test_http(how: Any, checked: bool) -> None:
    policy = HttpPolicy(fingerprint=how)
    one, two = (
        http_fingerprint(HttpRequest("POST", "/", b"/", b"", (), body), policy.fingerprint)
        for body in (b"1", b"2")
    )
    assert (one != two) is checked
    assert (one is None) is not checked


def test_the_proxys_variable() -> None:
    for text, meant in (("false", False), ("true", True), ("octets", "octets")):
        found = load(
            given={"upstream": "http://127.0.0.1:9000", "store": "memory://"},
            environ={"TWICESAFE_HTTP_FINGERPRINT": text},
        )
        assert found.policy().fingerprint == meant


# -- the next version of a function has one more parameter with a default ------------------------


def pay(order: dict[str, Any], cents: int) -> str:
    return "first"


def pay_more(order: dict[str, Any], cents: int, gift: bool = False, *a: str, **b: str) -> str:
    return "ran again"


@pytest.mark.parametrize("settings", [{"key": "cents", "fingerprint": True}, {}])
def test_a_new_parameter_with_a_default_is_no_other_request(settings: Any) -> None:
    """The repeat was refused; without a key, it ran again."""
    with Receiver.open("memory://") as receiver:
        before, after = (
            receiver.idempotent(scope=["pay"], **settings)(function) for function in (pay, pay_more)
        )
        order = {"id": "o-1"}
        assert before(order, 5) == after(order, 5) == after(order, 5, False) == "first"
        with suppress(FingerprintMismatchError):
            assert after(order, 5, gift=True) == "ran again"


def ship(order: Any) -> str:
    return "first"


def ship_more(order: Any, express: bool = False, *a: str, **b: str) -> str:
    return "ran again"


@pytest.mark.parametrize("settings", [{"key": lambda *_, **__: "o-1", "fingerprint": True}, {}])
@pytest.mark.parametrize(
    "order",
    [{"id": "o-1"}, "o-1", {}, {"order": "o-1"}, {"express": True}, {"id": 1, "express": 1}],
)
def test_a_second_parameter_with_a_default_is_no_other_request(settings: Any, order: Any) -> None:
    """A single argument is compared by its own fields, and was no longer: the repeat was refused, or ran again."""
    with Receiver.open("memory://") as receiver:
        before, after = (
            receiver.idempotent(scope=["ship"], **settings)(function)
            for function in (ship, ship_more)
        )
        assert before(order) == after(order) == after(order, express=False) == "first"
        with suppress(FingerprintMismatchError):
            assert after(order, express=True) == "ran again"


def echo(order: Any = None, express: Any = None) -> Any:
    return order, express


def echo_order(order: Any, express: Any = None) -> Any:
    return order, express


@pytest.mark.parametrize("function", [echo, echo_order])
def test_an_argument_that_looks_like_arguments_is_another_request(function: Any) -> None:
    calls: list[tuple[Any, ...]] = [
        *((1,), (1, 2), (None, 2), ({},), ({"other": 1},), ({"order": 1},), ({"express": 2},)),
        *(({"order": 1, "express": 2},), ({"order": {"order": 1}},), ({"order": {}},)),
    ]
    with Receiver.open("memory://") as receiver:
        once = receiver.idempotent()(function)
        for call in [*calls, *calls]:
            assert once(*call) == function(*call)
