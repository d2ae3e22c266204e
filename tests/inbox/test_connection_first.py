"""A handler that needs one more positional argument gets the connection in front of the others."""

from __future__ import annotations

import asyncio
import functools
import inspect
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiosqlite
import pytest

from twicesafe import AsyncInbox, FingerprintMismatchError, Inbox
from twicesafe._core.handler_profile import profile_of


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    opened = sqlite3.connect(tmp_path / "shop.db")
    yield opened
    opened.close()


@pytest.fixture
def inbox(tmp_path: Path) -> Iterator[Inbox]:
    with Inbox.open(f"sqlite:///{tmp_path / 'shop.db'}", fingerprint=True) as opened:
        yield opened


def wrapped(handler: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that supplies an argument itself, as those for dependencies do."""

    @functools.wraps(handler)
    def supply(*args: Any, **kwargs: Any) -> Any:
        return handler("supplied", *args, **kwargs)

    return supply


class Shop:
    def charge(self, connection: Any, order: Any) -> Any:
        return connection, order

    def __call__(self, connection: Any, order: Any) -> Any:
        return connection, order

    @classmethod
    def book(cls, connection: Any, order: Any) -> Any:
        return connection, order

    @staticmethod
    def ship(connection: Any, order: Any) -> Any:
        return connection, order


def charge(connection: Any, order: Any) -> Any:
    return connection, order


def with_default(connection: Any, order: Any, currency: str = "EUR") -> Any:
    return connection, order


def by_position(connection: Any, order: Any, /) -> Any:
    return connection, order


def with_rest(connection: Any, order: Any, *rest: Any, **more: Any) -> Any:
    return connection, order


def by_keyword(connection: Any, order: Any, *, currency: str) -> Any:
    return connection, order


SHORT: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = [
    (charge, (7,), {}),
    (charge, (), {"order": 7}),
    (with_default, (7,), {}),
    (with_default, (7,), {"currency": "USD"}),
    (with_default, (), {"order": 7, "currency": "USD"}),
    (by_position, (7,), {}),
    (with_rest, (7,), {}),
    (with_rest, (7,), {"note": "n"}),
    (by_keyword, (7,), {"currency": "USD"}),
    (Shop().charge, (7,), {}),
    (Shop(), (7,), {}),
    (Shop.book, (7,), {}),
    (Shop.ship, (7,), {}),
    (lambda connection, order: (connection, order), (7,), {}),
    (functools.partial(charge, order=7), (), {}),
    (functools.partial(with_default, currency="USD"), (7,), {}),
]


@pytest.mark.parametrize("handler, args, kwargs", SHORT)
def test_the_short_form(
    tmp_path: Path,
    connection: sqlite3.Connection,
    handler: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
):
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    with Inbox.open(url, results="optional") as inbox, connection:
        outcome: Any = inbox.process(connection, "k", handler, *args, **kwargs)
    assert outcome.value == (connection, 7)


def nothing() -> None: ...
def one(order: Any) -> None: ...
def optional(connection: Any = None) -> None: ...
def anything(*args: Any, **kwargs: Any) -> None: ...
def named(*, connection: Any) -> None: ...


AS_GIVEN: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = [
    (nothing, (), {}),
    (lambda: 1, (), {}),
    (one, (7,), {}),
    (one, (), {"order": 7}),
    (optional, (), {}),
    (anything, (), {}),
    (anything, (7,), {}),
    (charge, ("c", 7), {}),
    (charge, ("c",), {"order": 7}),
    (charge, (), {"connection": "c", "order": 7}),
    (with_default, ("c", 7), {}),
    (wrapped(charge), (7,), {}),
    (Shop().charge, ("c", 7), {}),
    (functools.partial(charge, "c"), (7,), {}),
    (functools.partial(charge, "c", 7), (), {}),
    (dict, (), {"a": 1}),
    (int, ("7",), {}),
    (print, (7,), {}),
]


@pytest.mark.parametrize("handler, args, kwargs", AS_GIVEN)
def test_a_call_that_is_complete_is_left_as_it_is(
    handler: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
):
    assert not profile_of(handler).needs_one_more(handler, args, kwargs)


WRONG: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = [
    (charge, (), {}),  # two are missing
    (charge, (7,), {"connection": "c"}),  # one would be given twice
    (charge, (1, 2, 3), {}),
    (named, (), {}),  # what is missing is not positional
    (by_position, (), {"order": 7}),
    (nothing, (7,), {}),
]


@pytest.mark.parametrize("handler, args, kwargs", WRONG)
def test_a_call_that_one_more_argument_does_not_complete_fails_by_itself(
    handler: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
):
    assert not profile_of(handler).needs_one_more(handler, args, kwargs)
    with pytest.raises(TypeError):
        handler(*args, **kwargs)


@pytest.mark.parametrize("handler, args, kwargs", SHORT + AS_GIVEN + WRONG)
def test_the_rule_is_what_binding_would_say(
    handler: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
):
    def binds(*given: Any) -> bool:
        try:
            inspect.signature(handler, follow_wrapped=False).bind(*given, **kwargs)
        except (TypeError, ValueError):
            return False
        return True

    expected = not binds(*args) and binds("connection", *args)
    if handler in (int, print, dict):  # they do not tell their parameters
        expected = False
    assert profile_of(handler).needs_one_more(handler, args, kwargs) == expected


def test_both_forms_run_and_are_one_request(inbox: Inbox, connection: sqlite3.Connection):
    """The fingerprint leaves the connection out, so a message may change its form."""
    runs: list[Any] = []

    def book(connection: sqlite3.Connection, order: dict[str, int]) -> int:
        runs.append(connection)
        return order["n"]

    with connection:
        first = inbox.process(connection, "k", book, {"n": 1})
    with connection:
        again = inbox.process(connection, "k", book, connection, {"n": 1})
    with connection:
        named = inbox.process(connection, "k", book, order={"n": 1})
    assert [first.replayed, again.replayed, named.replayed] == [False, True, True]
    assert runs == [connection]
    with pytest.raises(FingerprintMismatchError), connection:
        inbox.process(connection, "k", book, {"n": 2})


def test_async_handlers_too(tmp_path: Path):
    async def book(connection: aiosqlite.Connection, order: int) -> int:
        async with connection.execute("SELECT 1"):
            return order

    async def main() -> list[bool]:
        path = tmp_path / "shop.db"
        async with (
            AsyncInbox.open(f"sqlite:///{path}", fingerprint=True) as inbox,
            aiosqlite.connect(path) as connection,
        ):
            first = await inbox.process(connection, "k", book, 7)
            again = await inbox.process(connection, "k", book, connection, 7)
            await connection.rollback()
            return [first.replayed, again.replayed]

    assert asyncio.run(main()) == [False, True]
