"""A fork while another thread holds a lock: the child has its own locks and threads."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

import twicesafe.propagation as propagation
from twicesafe import AsyncInbox, AsyncReceiver, Inbox, Key, Receiver
from twicesafe._cli.stopping import interruptible
from twicesafe._core.inbox_requests import DeferredWrite
from twicesafe._core.protocol import Claimed, ClaimRequest, Fail, Read, Verdict
from twicesafe._engines.redis.wakeups import Waiter, WakeupListener
from twicesafe._forking import RenewedLock, in_child
from twicesafe._runtime.adapting import for_threads
from twicesafe._runtime.deferred_writes import DeferredWrites
from twicesafe._runtime.replay_cache import ReplayCache
from twicesafe.client._budget import Budget
from twicesafe.errors import UsageError
from twicesafe.outbox.publishers.webhook import WebhookPublisher

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")

Case = tuple[AbstractContextManager[Any], Callable[[], object]]
"""A lock that another thread holds while we fork, and what the child does then."""


def forked(act: Callable[[], object]) -> int:
    """The child's exit code: 0, if it came to an end; 14 signals: it waited for ever."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12: a fork beside threads
        child = os.fork()
    if child == 0:  # pragma: no cover
        signal.alarm(30)
        try:
            act()
        except BaseException as error:
            os.write(2, repr(error).encode())
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def while_held(lock: AbstractContextManager[Any], act: Callable[[], object]) -> int:
    """Another thread has the lock, and goes on having it until the child is over."""
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            over.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        return forked(act)
    finally:
        over.set()
        thread.join()


def took(lock: RenewedLock) -> None:
    with lock.now:
        pass


def a_file(folder: Path) -> str:
    return f"sqlite:///{folder / 'forks.db'}"


def async_store(folder: Path) -> Case:
    store: Any = AsyncReceiver.open(a_file(folder)).store
    return store._opening.now, store.blocking_store


def async_inbox(folder: Path) -> Case:
    inbox: Any = AsyncInbox.open(a_file(folder)).options(scope=["copied"])
    return inbox._runtime._opening.now, inbox._runtime.open_blocking_store


def memory_store(folder: Path) -> Case:
    store: Any = Receiver.open("memory://").store
    return store._lock.now, lambda: store.perform(Read(Key("k").id))


def replay_cache(folder: Path) -> Case:
    cache = ReplayCache(10, lambda: 0.0)
    return cache._lock.now, lambda: cache.put(b"k", Claimed(Verdict.REPLAY, expires_in=1000))


def deferred_writes(folder: Path) -> Case:
    kept = DeferredWrites(lambda deferred: None)
    return kept._changed, lambda: (kept.wait(b"k", 30), kept.close())


def listener(folder: Path) -> Case:
    def nowhere(_: object) -> Any:
        raise OSError

    listening = WakeupListener(nowhere, nowhere, sharded=False)
    waiter = Waiter(b"k", bool, bool)
    return listening._lock, lambda: (
        listening.restart(),
        listening.unwatch(waiter),
        listening.close(),
    )


def webhook(folder: Path) -> Case:
    publisher = WebhookPublisher("http://127.0.0.1:1/")
    return publisher._making.now, lambda: took(publisher._making)


def budget(folder: Path) -> Case:
    retries = Budget()
    return retries._lock.now, retries.spend


def numbered_calls(folder: Path) -> Case:
    return propagation._numbering.now, lambda: took(propagation._numbering)


@pytest.mark.parametrize(
    "case",
    [
        async_store, async_inbox, memory_store, replay_cache, deferred_writes, listener, webhook, budget,
        numbered_calls,
    ],
)  # fmt: skip
def test_a_lock_that_was_held_at_the_fork_is_free_in_the_child(
    case: Callable[[Path], Case], tmp_path: Path
):
    lock, act = case(tmp_path)
    assert while_held(lock, act) == 0


def test_a_lock_without_this_would_stay_locked(monkeypatch: pytest.MonkeyPatch):
    """The test above can fail."""
    lock = RenewedLock()
    monkeypatch.setattr("twicesafe._forking._in_child", {})
    assert while_held(lock.now, lambda: 1 / lock.now.acquire(blocking=False)) == 1


def test_deferred_writes_of_the_parent_are_not_the_childs(tmp_path: Path):
    """The parent writes them; a child that waited for them, or counted them, would do so for ever."""
    gate, written = threading.Event(), []

    def write(deferred: DeferredWrite) -> None:
        gate.wait()
        written.append(deferred)

    kept, key, owner = DeferredWrites(write), Key("m-1"), b"o" * 16
    kept.add(
        DeferredWrite(
            ClaimRequest(key, owner, 5000, 5, False, None), Fail(key.id, owner, 0, 0, 5, 1000, "no")
        )
    )
    assert len(kept.unwritten(key.id)) == 1

    def in_the_child() -> None:
        assert kept.unwritten(key.id) == []
        kept.wait(key.id, 1e9)
        kept.close()

    assert forked(in_the_child) == 0
    gate.set()
    kept.close(60)
    assert len(written) == 1


def test_an_inbox_records_failures_in_the_child_too(tmp_path: Path):
    with Inbox.open(a_file(tmp_path)) as inbox:
        key, owner = inbox.key("m-1"), b"o" * 16
        deferred = DeferredWrite(
            ClaimRequest(key, owner, 5000, 5, False, None),
            Fail(key.id, owner, 0, 0, 5, 1000_000, "no"),
        )
        inbox._runtime.deferred.add(deferred)
        inbox._runtime.deferred.wait(key.id, 60)

        def in_the_child() -> None:
            other = inbox.key("m-2")
            again = DeferredWrite(
                ClaimRequest(other, owner, 5000, 5, False, None),
                Fail(other.id, owner, 0, 0, 5, 1000_000, "no"),
            )
            inbox._runtime.deferred.add(again)
            inbox.close()

        assert forked(in_the_child) == 0
    with Receiver.open(a_file(tmp_path)) as receiver:
        assert receiver.record("m-1") is not None
        assert receiver.record("m-2") is not None


def test_what_is_gone_is_not_made_anew():
    class Kept:
        def renew(self) -> None:
            os._exit(3)

    kept = Kept()
    in_child(kept.renew)
    assert forked(int) == 3
    del kept
    assert forked(int) == 0


class AsyncThing:
    """As sources and publishers of async drivers are."""

    async def fetch(self) -> int:
        return os.getpid()

    async def close(self) -> None: ...


def test_a_connection_that_was_not_used_before_the_fork_is_the_childs() -> None:
    """A consumer or a relay is often opened at import, and run in children."""
    adapted = for_threads(AsyncThing(), "fetch")

    def use() -> None:
        assert adapted.fetch() == os.getpid()
        adapted.close()

    assert forked(use) == 0
    assert adapted.fetch() == os.getpid()
    adapted.close()


def test_a_connection_that_was_used_before_the_fork_is_refused() -> None:
    adapted = for_threads(AsyncThing(), "fetch")
    adapted.fetch()

    def use() -> None:
        with pytest.raises(UsageError, match="forked"):
            adapted.fetch()
        adapted.close()

    assert forked(use) == 0
    adapted.close()
    adapted.close()
    with pytest.raises(UsageError, match="closed"):
        adapted.fetch()


def test_a_signal_ends_a_child_of_a_command_that_finishes_its_work_first(
    request: pytest.FixtureRequest,
) -> None:
    # A worker of RQ in an earlier test may have left its own handler in this process.
    request.addfinalizer(lambda: signal.signal(signal.SIGTERM, before))
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with interruptible() as stop:
        assert forked(lambda: signal.raise_signal(signal.SIGTERM)) == -signal.SIGTERM
        assert not stop.is_set()
