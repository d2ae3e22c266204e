"""``twicesafe verify``: a table and a verdict on the user's own handler, and a status for scripts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.line import Line, Ran

SHOP = """
book, seen = [], {}

def lines():
    return [*book, *seen.values()]

def clear():
    book.clear()
    seen.clear()

def charge(order):
    book.append(order["id"])
    return order["id"]

def put(order, note="x"):
    seen[order["id"]] = note
    return note

def broken(order):
    raise ZeroDivisionError("no")

def noisy(order, note="x"):
    print("charging", order)
    return put(order, note)

def ends(order):
    book.append(order["id"])
    raise SystemExit(0)

def other_answer(order):
    new = order["id"] not in seen
    seen[order["id"]] = 1
    return new

def fails():
    raise ConnectionError("no database here")

shelf = 7

from twicesafe import Policy, Receiver

receiver = Receiver.open("memory://", policy=Policy(max_attempts=10))

@receiver.durable(key="order")
def checkout(steps, order):
    steps.run("put", put, order)
    return steps.run("charge", charge, order)
"""


@pytest.fixture
def verify(line: Line, tmp_path: Path) -> Iterator[Callable[..., Ran]]:
    (tmp_path / "cornershop.py").write_text(SHOP)
    path = list(sys.path)

    def run(handler: str, *more: str) -> Ran:
        world = ("--snapshot", "cornershop:lines", "--setup", "cornershop:clear")
        return line("verify", handler, *world, *more, store=False)

    yield run
    sys.path[:] = path
    sys.modules.pop("cornershop", None)


ORDER = ("--input", '{"id": "o-1"}')


def test_a_handler_that_doubles_is_status_1_and_says_where(verify: Callable[..., Ran]):
    ran = verify("cornershop:charge", *ORDER)
    assert ran.status == 1
    assert "WRONG  2 starts  before cornershop.py:13 in charge: return order" in ran.out
    assert "first bad interleaving" in ran.out
    assert "charge is not safe to repeat" in ran.out


def test_a_durable_function_is_killed_at_every_step(verify: Callable[..., Ran]):
    ran = verify("cornershop:checkout", *ORDER, "--interleavings", "0", "--points")
    assert ran.status == 1, ran.err
    wrong = [row for row in ran.out.splitlines() if "WRONG" in row]
    assert len(wrong) == 1, ran.out
    assert "before record_step 'charge'" in wrong[0]


def test_a_handler_that_is_right_is_status_0(verify: Callable[..., Ran]):
    ran = verify("cornershop:put", *ORDER, "--input", '"y"', "--interleavings", "20")
    assert ran.status == 0
    assert "put is safe to repeat, as far as" in " ".join(ran.out.split())
    assert "WRONG" not in ran.out


def test_for_programs(verify: Callable[..., Ran]):
    ran = verify("cornershop:charge", *ORDER, "--points", "--interleavings", "0", "--json")
    assert ran.status == 1
    assert ran.data["ok"] is False
    assert {trial["kind"] for trial in ran.data["trials"]} == {"delivery", "crash"}
    held = verify("cornershop:charge", *ORDER, "--hold", "--interleavings", "0", "--json")
    assert (held.status, held.data["ok"]) == (0, True)
    bare = verify("cornershop:charge", *ORDER, "--bare", "--interleavings", "0", "--json")
    assert bare.data["trials"][2]["fault"].startswith("doubled")


@pytest.mark.parametrize(
    "arguments, told",
    [
        (("charge", *ORDER), "MODULE:NAME"),
        (("nowhere:charge", *ORDER), "no module 'nowhere'"),
        (("cornershop:missing", *ORDER), "no function 'missing'"),
        (("cornershop:shelf", *ORDER), "no function 'shelf'"),
        (("cornershop:charge", "--input", "o-1"), "is not JSON"),
        (("cornershop:charge", "--input", '"\udcff"'), "is not JSON"),
        (("cornershop:charge", *ORDER, "--kill"), "outlives its process"),
    ],
)
def test_bad_usage_is_status_2(verify: Callable[..., Ran], arguments: tuple[str, ...], told: str):
    ran = verify(*arguments)
    assert ran.status == 2
    assert told in " ".join(ran.err.split())


def test_a_clean_run_that_fails_is_reported(verify: Callable[..., Ran]):
    ran = verify("cornershop:broken", *ORDER)
    assert ran.status == 1
    assert "clean run of broken failed: ZeroDivisionError: no" in " ".join(ran.err.split())


def test_what_the_handler_prints_is_not_the_report(verify: Callable[..., Ran]):
    ran = verify("cornershop:noisy", *ORDER, "--interleavings", "0", "--json")
    assert ran.data["ok"] is True
    assert "charging" in ran.err


def test_a_handler_that_ends_its_process_has_not_passed(verify: Callable[..., Ran]):
    ran = verify("cornershop:ends", *ORDER)
    assert ran.status == 1
    assert "the handler exited, with status 0" in " ".join(ran.err.split())


def test_answers_that_may_differ(verify: Callable[..., Ran]):
    assert verify("cornershop:other_answer", *ORDER, "--interleavings", "0").status == 1
    ran = verify("cornershop:other_answer", *ORDER, "--interleavings", "0", "--any-result")
    assert ran.status == 0


def test_lines_of_another_module(verify: Callable[..., Ran], tmp_path: Path):
    (tmp_path / "frontshop.py").write_text(
        "import cornershop\n\ndef view(order):\n    return cornershop.charge(order)\n"
    )
    try:
        ran = verify("frontshop:view", *ORDER, "--interleavings", "0")
        assert "a call into cornershop.py is one step" in " ".join(ran.out.split())
        ran = verify("frontshop:view", *ORDER, "--lines-of", "cornershop", "--interleavings", "0")
        assert "in charge: return order" in ran.out
        assert verify("frontshop:view", *ORDER, "--lines-of", "nowhere").status == 2
    finally:
        sys.modules.pop("frontshop", None)


def test_mistakes_of_the_call_are_one_line_and_status_2(verify: Callable[..., Ran], line: Line):
    world = ("--snapshot", "cornershop:lines", "--setup", "cornershop:fails")
    ran = line("verify", "cornershop:charge", *world, *ORDER, store=False)
    assert ran.status == 2
    assert "--setup failed: ConnectionError: no database here" in " ".join(ran.err.split())
    Path("brokenshop.py").write_text("import math\nmath.nothing\n")
    ran = verify("brokenshop:charge", *ORDER)
    assert ran.status == 2
    assert "brokenshop raised while it was imported: AttributeError" in " ".join(ran.err.split())
