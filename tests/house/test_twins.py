"""X and AsyncX are twins: the same names on one page, the same parameters, both documented."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

import pytest

TWINS = [
    ("Receiver", "AsyncReceiver"),
    ("MessageHandler", "AsyncMessageHandler"),
    ("Inbox", "AsyncInbox"),
    ("Outbox", "AsyncOutbox"),
    ("OutboxRelay", "AsyncOutboxRelay"),
]

# Names of a twin that talk to the store: plain on X, awaited on AsyncX.
AWAITED = {
    "Receiver": {
        "process", "process_many", "record", "release", "resolve", "forget", "sweep", "stats",
        "close",
    },
}  # fmt: skip

# Names that must not need awaiting on AsyncX either.
PLAIN = {"Receiver": {"open", "options", "idempotent", "claim"}}


def named(name: str) -> type:
    return getattr(importlib.import_module("twicesafe"), name)


def public(cls: type) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")}


def parameters(member: Any) -> list[tuple[Any, ...]]:
    return [
        (p.name, p.kind, repr(p.default), annotation(p.annotation))
        for p in inspect.signature(member).parameters.values()
    ]


def annotation(written: Any) -> str:
    """An annotation without its mode; a callable's may differ, since handlers may be coroutines."""
    text = written if isinstance(written, str) else inspect.formatannotation(written)
    return "a callable" if "Callable" in text else re.sub(r"\b_?Async", "", text)


def members() -> list[tuple[str, str, str]]:
    """Every public name of either twin, found when tests are collected."""
    found = []
    for plain, other in TWINS:
        try:
            names = public(named(plain)) | public(named(other))
        except (ImportError, AttributeError):
            names = {"open"}  # the tests below will say what is missing
        found += [(plain, other, name) for name in sorted(names)]
    return found


@pytest.mark.parametrize("plain, other", TWINS)
def test_twins_have_the_same_names(plain: str, other: str):
    assert public(named(plain)) == public(named(other))


@pytest.mark.parametrize("plain, other", TWINS)
def test_twins_stand_on_one_page(plain: str, other: str):
    assert inspect.getsourcefile(named(plain)) == inspect.getsourcefile(named(other))


@pytest.mark.parametrize("plain, other", TWINS)
def test_twins_are_made_alike(plain: str, other: str):
    assert parameters(named(plain)) == parameters(named(other))


@pytest.mark.parametrize("plain, other", TWINS)
def test_twins_are_documented(plain: str, other: str):
    for name in (plain, other):
        assert named(name).__doc__, f"{name} has no docstring of its own"


@pytest.mark.parametrize("plain, other, name", members())
def test_members_are_equal_and_documented(plain: str, other: str, name: str):
    ours, theirs = (inspect.getattr_static(named(cls), name) for cls in (plain, other))
    assert type(ours) is type(theirs), f"{name} is a {type(ours).__name__} on one side only"
    if callable(getattr(named(plain), name)):
        assert parameters(getattr(named(plain), name)) == parameters(getattr(named(other), name))
    for cls in (plain, other):
        assert inspect.getdoc(getattr(named(cls), name)), f"{cls}.{name} has no docstring"


def needs_await(member: Any) -> bool:
    if inspect.iscoroutinefunction(member):
        return True
    returned = inspect.signature(member).return_annotation
    text = returned if isinstance(returned, str) else inspect.formatannotation(returned)
    return re.match(r"(\w+\.)*(Awaitable|Coroutine)\b", text) is not None


@pytest.mark.parametrize("plain, other", TWINS)
def test_what_talks_to_the_store_is_awaited_on_one_side_only(plain: str, other: str):
    for name in AWAITED.get(plain, ()):
        assert not needs_await(getattr(named(plain), name)), name
        assert needs_await(getattr(named(other), name)), name
    for name in PLAIN.get(plain, ()):
        assert not needs_await(getattr(named(other), name)), name


def test_receivers_are_context_managers_of_their_mode():
    for cls, enter in ((named("Receiver"), "__enter__"), (named("AsyncReceiver"), "__aenter__")):
        assert hasattr(cls, enter)
    assert not hasattr(named("Receiver"), "__aenter__")
    assert not hasattr(named("AsyncReceiver"), "__enter__")


# ------------------------------------------------------------------ the comparison itself


def test_modes_compare_equal_and_other_differences_do_not():
    class Claim: ...

    class AsyncClaim: ...

    def plain(key: str, claim: "Claim", *, wait: float = 1) -> None: ...  # noqa: UP037
    async def other(key: str, claim: "AsyncClaim", *, wait: float = 1) -> None: ...  # noqa: UP037
    async def shorter(key: str, claim: "AsyncClaim", *, wait: float = 2) -> None: ...  # noqa: UP037
    async def untyped(key: str, claim: "AsyncClaim", *, wait: int = 1) -> None: ...  # noqa: UP037

    assert parameters(plain) == parameters(other)
    assert parameters(plain) != parameters(shorter)
    assert parameters(plain) != parameters(untyped)
    assert needs_await(other)
    assert not needs_await(plain)
