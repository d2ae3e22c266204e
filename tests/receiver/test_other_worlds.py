"""Where a receiver does not work it says so: other event loops, other processes."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Coroutine
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from twicesafe import AsyncInbox, AsyncOutbox, AsyncReceiver, Inbox, Outbox, Receiver, UsageError
from twicesafe.consumers import AsyncConsumer
from twicesafe.outbox import AsyncOutboxRelay
from twicesafe.stores._urls import open_store
from twicesafe.testing import assert_idempotent_async


def foreign_loop(work: Coroutine[Any, Any, Any]) -> Any:
    """As trio does: it sends None and knows nothing of asyncio."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    finally:
        work.close()
    raise AssertionError("it waits for something")


async def handler(*_: Any) -> None:
    raise AssertionError("started")


def test_another_event_loop_is_refused_with_an_explanation(tmp_path: Path):
    for url in ("memory://", f"sqlite:///{tmp_path / 'keys.db'}"):
        receiver = AsyncReceiver.open(url)
        calls: list[Callable[[], Coroutine[Any, Any, Any]]] = [
            lambda receiver=receiver: receiver.process("k", handler),
            lambda receiver=receiver: receiver.process_many(["k"], handler, key=str),
            lambda receiver=receiver: receiver.claim("k").__aenter__(),
            lambda receiver=receiver: receiver.__aenter__(),
            lambda receiver=receiver: receiver.record("k"),
        ]
        for call in calls:
            with pytest.raises(UsageError, match=r"asyncio.*trio\.to_thread"):
                foreign_loop(call())


def test_and_so_for_inbox_and_outbox(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'keys.db'}"
    for opened in (AsyncInbox.open(url), AsyncOutbox.open(url)):
        with pytest.raises(UsageError, match="asyncio"):
            foreign_loop(opened.__aenter__())


def test_and_so_for_what_works_in_the_background(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'keys.db'}"
    receiver = AsyncReceiver.open(url)
    completer, relay = receiver.completer(), AsyncOutboxRelay.open(url, handler)
    consumer = AsyncConsumer.open("redis://127.0.0.1:1?stream=s&group=g", receiver=receiver)
    with pytest.raises(UsageError, match="asyncio"):
        receiver.maintain()  # at the top of a module, say
    for call in (
        receiver.health,
        completer.run,
        completer.start,
        relay.run,
        relay.drain,
        relay.start,
        lambda: consumer.run(handler),
        lambda: consumer.drain(handler),
        lambda: assert_idempotent_async(handler),
    ):
        with pytest.raises(UsageError, match="asyncio"):
            foreign_loop(call())
    assert not receiver._upkeep


@pytest.mark.parametrize("kind", [Receiver, AsyncReceiver, Inbox, AsyncInbox, Outbox, AsyncOutbox])
def test_what_is_open_is_not_pickled(kind: Any, tmp_path: Path):
    opened = kind.open(f"sqlite:///{tmp_path / 'keys.db'}")
    for act in (pickle.dumps, copy.deepcopy):
        with pytest.raises(
            UsageError, match=rf"a {kind.__name__} cannot be pickled.*in each process"
        ):
            act(opened)
    if not kind.__name__.startswith("Async"):
        opened.close()


def test_a_store_neither(tmp_path: Path):
    with pytest.raises(UsageError, match="MemoryStore cannot be pickled"):
        pickle.dumps(open_store("memory://"))


def test_a_process_pool_says_why():
    receiver = Receiver.open("memory://")
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        sent = pool.submit(print, receiver)
        with pytest.raises(UsageError, match="initializer"):
            sent.result(60)


def test_options_still_share_the_store():
    receiver = Receiver.open("memory://")
    other = receiver.options(scope=("a",))
    assert other.store is receiver.store
    assert copy.copy(receiver).store is receiver.store
