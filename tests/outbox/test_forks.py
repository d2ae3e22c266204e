"""A relay and its forked children: connections to a broker belong to the process that opened them."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.outbox.hook import Hook
from tests.outbox.stage import Broker
from twicesafe import UsageError
from twicesafe.outbox import Outbox, OutboxRelay


@pytest.fixture
def hook() -> Iterator[Hook]:
    made = Hook()
    yield made
    made.close()


def forked(act: Callable[[], object]) -> int:
    """The exit status of a child that does this."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12: a fork beside threads
        child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = 9
    try:
        signal.alarm(60)  # if it waits for ever
        act()
        status = 0
    finally:
        os._exit(status)


@pytest.fixture
def url(tmp_path: Any) -> str:
    return f"sqlite:///{tmp_path / 'shop.db'}"


def test_a_child_does_not_use_the_connection_of_its_parent(
    outbox: Outbox, put: Callable[..., Any], hook: Hook
):
    """Both wrote into one socket, and either could read the answer to the other's message."""
    put("1")
    relay = OutboxRelay.open(outbox.store.url, hook.url)
    assert relay.drain() == 1
    put("2")

    def refused() -> None:
        with pytest.raises(UsageError, match="forked after its parent had used"):
            relay.drain()
        relay.close()

    assert forked(refused) == 0
    assert relay.drain() == 1
    relay.close()
    assert hook.connections == 1
    assert [body for _, body in hook.got] == [b"1", b"2"]


def test_a_relay_that_was_only_opened_before_the_fork_runs_in_the_child(
    outbox: Outbox, put: Callable[..., Any], hook: Hook
):
    put("1")
    relay = OutboxRelay.open(outbox.store.url, hook.url)
    assert forked(relay.drain) == 0
    assert [body for _, body in hook.got] == [b"1"]
    relay.close()


def test_a_function_has_no_connection(outbox: Outbox, put: Callable[..., Any]):
    sent: list[Any] = []
    relay = OutboxRelay(outbox.store, sent.append)
    put("1")
    assert relay.drain() == 1
    put("2")
    assert forked(relay.drain) == 0
    assert outbox.depth().pending == 0


def test_a_child_closes_no_publisher_of_its_parent(outbox: Outbox, put: Callable[..., Any]):
    closed, broker = [], Broker()
    broker.close = lambda: closed.append(1)  # type: ignore[method-assign]
    relay = OutboxRelay(outbox.store, broker)
    put("1")
    relay.drain()

    def closing() -> None:
        relay.close()
        assert not closed

    assert forked(closing) == 0
    relay.close()
    assert closed == [1]
