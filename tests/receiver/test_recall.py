"""A repeat on an embedded store is answered by one look: no claim, no write, the same answer."""

from __future__ import annotations

import asyncio
import functools
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.polling import until
from tests.stores.sudden import begin
from twicesafe import (
    AsyncReceiver,
    FingerprintMismatchError,
    Key,
    Policy,
    Receiver,
    RememberedFailureError,
    UsageError,
    events,
)
from twicesafe._core.protocol import ClaimRequest, Complete, Verdict
from twicesafe._engines.sqlite import SqliteStore
from twicesafe._engines.sqlite.requests import EMPTY_LOOKS


class Watched:
    """A receiver, and the requests that reached its store."""

    def __init__(self, url: str) -> None:
        self.seen: list[Any] = []
        self.receiver = Receiver.open(url, observers=[self.seen.append])
        self.requests: list[str] = []
        perform = self.receiver.store.perform

        def counted(request: Any) -> Any:
            self.requests.append(request.op)
            return perform(request)

        self.receiver.store.perform = counted  # type: ignore[method-assign]


@pytest.fixture(params=["memory", "sqlite"])
def watched(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Watched]:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/keys.db"
    watched = Watched(url)
    yield watched
    watched.receiver.close()


def test_a_repeat_makes_no_claim(watched: Watched):
    receiver = watched.receiver
    first = receiver.process("k", lambda: {"n": 1})
    asked = list(watched.requests)
    again = receiver.process("k", lambda: {"n": 2})
    assert (again.value, again.replayed, again.fence) == ({"n": 1}, True, first.fence)
    assert asked == ["claim", "complete"]
    assert watched.requests == asked, "the repeat asked the store for more than a look"
    assert [event.cached for event in watched.seen if isinstance(event, events.Replayed)] == [False]


def test_a_repeat_by_hand_makes_no_claim(watched: Watched):
    """The same for `claim`, and so for the HTTP edges."""
    receiver = watched.receiver
    with receiver.claim("k", fingerprint=b"same") as first:
        first.complete({"n": 1})
    asked = list(watched.requests)
    with receiver.claim("k", fingerprint=b"same") as again:
        assert (again.is_new, again.result, again.fence) == (False, {"n": 1}, first.fence)
        for act in (lambda: again.complete(2), again.release, again.hold):
            with pytest.raises(UsageError, match="duplicate"):
                act()
    assert watched.requests == asked, "the repeat asked the store for more than a look"
    with pytest.raises(FingerprintMismatchError), receiver.claim("k", fingerprint=b"other"):
        pass


async def test_a_repeat_by_hand_makes_no_claim_async():
    async with AsyncReceiver.open("memory://") as receiver:
        async with receiver.claim("k") as first:
            await first.complete(1)
        async with receiver.claim("k") as again:
            assert (again.is_new, again.result, again.fence) == (False, 1, first.fence)
            for act in (again.complete, again.release, again.hold):
                with pytest.raises(UsageError, match="duplicate"):
                    await act()


def test_a_claim_is_answered_from_the_cache_too(tmp_path: Path):
    with Receiver.open(f"sqlite:///{tmp_path}/keys.db", cache=10) as receiver:
        with receiver.claim("k") as first:
            first.complete(1)
        receiver._runtime.recall = lambda _: pytest.fail("asked the store")
        with receiver.claim("k") as again:
            assert (again.is_new, again.result) == (False, 1)


def test_another_payload_is_still_refused(watched: Watched):
    receiver = watched.receiver.options(fingerprint=True)
    receiver.process("k", len, "first")
    with pytest.raises(FingerprintMismatchError):
        receiver.process("k", len, "other")


def test_a_remembered_failure_is_still_the_answer(watched: Watched):
    receiver = watched.receiver.options(policy=Policy(remember=(ValueError,)))

    def refuse() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        receiver.process("k", refuse)
    with pytest.raises(RememberedFailureError):
        receiver.process("k", refuse)


def test_what_an_operator_released_runs_again(watched: Watched):
    receiver = watched.receiver
    receiver.process("k", lambda: 1)
    receiver.release("k", by="ann", force=True)
    assert receiver.process("k", lambda: 2).value == 2


def test_a_look_waits_for_no_writer(tmp_path: Path):
    """While another thread writes, a repeat is answered from its own connection."""
    with Receiver.open(f"sqlite:///{tmp_path}/keys.db") as receiver:
        receiver.process("k", lambda: 1)
        written, go_on = threading.Event(), threading.Event()

        def write() -> None:
            def hold() -> None:
                written.set()
                assert go_on.wait(60)

            receiver.store._writes.alone(hold)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            assert written.wait(60)
            assert receiver.process("k", lambda: 2).replayed
        finally:
            go_on.set()
            writer.join()


def test_an_async_receiver_in_memory_looks_too():
    async def main() -> None:
        async with AsyncReceiver.open("memory://") as receiver:

            async def work() -> int:
                return 1

            await receiver.process("k", work)
            assert (await receiver.process("k", work)).replayed

    asyncio.run(main())


def test_an_interrupted_look_leaves_no_statement_open(tmp_path: Path):
    """An open statement would keep an old snapshot, from which SQLite refuses to write."""
    store, other = (SqliteStore(tmp_path / "keys.db") for _ in range(2))
    owner = b"o" * 16

    class Interrupted:
        def __init__(self, cursor: Any) -> None:
            self.cursor = cursor

        def execute(self, sql: str, values: Any) -> Any:
            self.cursor.execute(sql, values)
            return self

        def fetchall(self) -> Any:
            raise KeyboardInterrupt

    store.perform(ClaimRequest(Key("a"), owner, 60_000))
    store._cursor = Interrupted(store._cursor)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        store.recall(Key("a").id)
    other.perform(ClaimRequest(Key("b"), owner, 60_000))
    assert store.perform(ClaimRequest(Key("c"), owner, 60_000)).verdict is Verdict.WON
    store.close()
    other.close()


@pytest.fixture
def busy_with_new_keys(tmp_path: Path) -> Iterator[Watched]:
    """SQLite, after so many new keys that it takes further ones for new too."""
    watched = Watched(f"sqlite:///{tmp_path}/keys.db?timeout=0.05")
    receiver = watched.receiver
    for number in range(EMPTY_LOOKS + 1):
        receiver.process(f"new-{number}", lambda: 1)
    looks: list[bytes] = []
    recall = receiver.store._recall
    receiver.store._recall = lambda id_: (looks.append(id_), recall(id_))[1]
    receiver.process("one more", lambda: 1)
    assert not looks, "it looked, though every key before was new"
    watched.requests.clear()
    yield watched
    receiver.close()


def test_a_repeat_among_new_keys_is_answered_by_its_claim(busy_with_new_keys: Watched):
    watched = busy_with_new_keys
    again = watched.receiver.process("new-3", lambda: 2)
    assert (again.value, again.replayed) == (1, True)
    assert watched.requests == ["claim"]


def test_after_a_repeat_among_new_keys_the_store_looks_again(busy_with_new_keys: Watched):
    watched = busy_with_new_keys
    watched.receiver.process("new-3", lambda: 2)
    watched.requests.clear()
    assert watched.receiver.process("new-4", lambda: 2).replayed
    assert watched.requests == [], "the second repeat asked the store for more than a look"


def test_a_repeat_among_new_keys_is_answered_while_the_file_is_locked(busy_with_new_keys: Watched):
    """Another process may keep its write lock for long: only the first repeat waits for it."""
    watched = busy_with_new_keys
    other = sqlite3.connect(watched.receiver.store.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        assert watched.receiver.process("new-3", lambda: 2).replayed
        watched.requests.clear()
        assert watched.receiver.process("new-4", lambda: 2).replayed
        assert watched.requests == [], "the second repeat asked the store for more than a look"
    finally:
        other.close()


def test_a_repeat_among_new_keys_is_answered_by_its_batch(busy_with_new_keys: Watched):
    """Requests that waited for the writer share a transaction: the repeat is found there."""
    store = busy_with_new_keys.receiver.store
    assert store._writes.hold(5)
    asks = [ClaimRequest(Key(key), key.encode() * 4, 60_000, looked=True) for key in ("new-3", "b")]
    ends = [begin(functools.partial(store.perform, ask)) for ask in asks]
    until(lambda: len(store._writes._line) == 2)
    store._writes.let_go()
    assert [end().verdict for end in ends] == [Verdict.REPLAY, Verdict.WON]
    assert store.recall(Key("new-4").id).verdict is Verdict.REPLAY, "it does not look again"


@pytest.mark.parametrize("looks", [0, EMPTY_LOOKS])
def test_new_keys_are_looked_for_beside_a_busy_writer_only_while_a_look_may_find_one(
    tmp_path: Path, looks: int
):
    """A look on another connection costs more than the claim that follows it."""
    store = SqliteStore(tmp_path / "keys.db")
    assert store._writes.hold(5)
    for number in range(looks):
        assert store.recall(Key(f"new-{number}").id) is None
    store._idle_readers.clear()
    assert store.recall(Key("k").id) is None
    assert bool(store._idle_readers) is (looks == 0)
    store._writes.let_go()
    store.close()


def test_a_mismatch_among_new_keys_is_refused(busy_with_new_keys: Watched):
    receiver = busy_with_new_keys.receiver.options(fingerprint=True)
    receiver.process("k", len, "first")
    with pytest.raises(FingerprintMismatchError):
        receiver.process("k", len, "other")


def test_claims_that_look_themselves_stop_after_many_new_keys_until_a_repeat(tmp_path: Path):
    """The callers of an async receiver do not look, so its claims do."""
    store = SqliteStore(tmp_path / "keys.db")
    looks: list[bytes] = []
    recall = store._recall
    store._recall = lambda id_: (looks.append(id_), recall(id_))[1]  # type: ignore[method-assign]

    def claim(name: str, owner: bytes, fingerprint: bytes | None = None) -> Verdict:
        return store.perform(
            ClaimRequest(Key(name), owner * 16, 60_000, fingerprint=fingerprint)
        ).verdict

    for number in range(EMPTY_LOOKS + 1):
        assert claim(f"new-{number}", b"a", b"one") is Verdict.WON
        store.perform(Complete(Key(f"new-{number}").id, b"a" * 16, 1, 60_000, b"jnull"))
    assert len(looks) == EMPTY_LOOKS
    assert claim("new-3", b"b", b"one") is Verdict.REPLAY
    assert len(looks) == EMPTY_LOOKS, "it looked, though every key before was new"
    assert claim("new-4", b"b") is Verdict.REPLAY
    assert claim("new-5", b"b", b"two") is Verdict.MISMATCH
    assert len(looks) == EMPTY_LOOKS + 2
    store.close()
