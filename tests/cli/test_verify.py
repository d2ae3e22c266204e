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

shelf = 7
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
        (("cornershop:charge", *ORDER, "--kill"), "outlives its process"),
    ],
)
def test_bad_usage_is_status_2(verify: Callable[..., Ran], arguments: tuple[str, ...], told: str):
    ran = verify(*arguments)
    assert ran.status == 2
    assert told in " ".join(ran.err.split())


def test_a_clean_run_that_fails_is_told(verify: Callable[..., Ran]):
    ran = verify("cornershop:broken", *ORDER)
    assert ran.status == 1
    assert "clean run of broken failed: ZeroDivisionError: no" in " ".join(ran.err.split())
