"""A cluster of three loses its leader, its quorum or a member: nothing is lost, and without a quorum nothing runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.stores.etcd_clients import KINDS, MINUTE, A, B, claim, complete, insist, leader_of
from twicesafe import Key
from twicesafe._core.protocol import Ack, Read, Verdict
from twicesafe._values.records import State
from twicesafe.errors import StoreUnavailableError

KILLS = 5


@pytest.fixture
def cluster(own_server: Callable[..., Any]) -> Any:
    return own_server("etcd_cluster")


@pytest.fixture(params=KINDS)
def client(request: pytest.FixtureRequest, cluster: Any) -> Iterator[Any]:
    client = KINDS[request.param](f"{cluster.url}/orders?timeout=10")
    yield client
    client.close()


class Worker(threading.Thread):
    """Claims and completes one key after the other, and keeps what it was answered."""

    def __init__(self, number: int, url: str, kind: str) -> None:
        super().__init__(name=f"worker-{number}")
        self._number, self._kind = number, kind
        self._client = KINDS[kind](url)
        self.stopping = threading.Event()
        self.done: dict[Key, tuple[int, bytes]] = {}
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                self._deliver(Key(f"{self._number}-{len(self.done)}"))
        except BaseException as error:
            self.error = error
        finally:
            self._client.close()

    def _deliver(self, key: Key) -> None:
        owner = key.value.encode().ljust(16, b".")
        answer = insist(self._client.perform, claim(key, owner, 10 * MINUTE))
        assert answer.verdict is Verdict.WON, f"{key.value}: {answer}"
        assert answer.attempt == 1
        result = b"paid " + key.value.encode()
        request = complete(key, answer.fence, result, owner, 10 * MINUTE)
        assert insist(self._client.perform, request) is Ack.OK
        self.done[key] = answer.fence, result


def test_nothing_is_lost_while_leaders_are_killed(cluster: Any) -> None:
    url = f"{cluster.url}/orders?timeout=10"
    workers = [Worker(number, url, kind) for number, kind in enumerate(("blocking", "async") * 2)]
    for worker in workers:
        worker.start()
    try:
        for _ in range(KILLS):
            before = [len(worker.done) for worker in workers]
            leader = leader_of(cluster)
            leader.kill()
            _until_all_continue(workers, before)
            leader.start()
            cluster.await_health()
    finally:
        for worker in workers:
            worker.stopping.set()
        for worker in workers:
            worker.join(120)
    assert [worker.error for worker in workers] == [None] * len(workers)
    reader = KINDS["blocking"](url)
    try:
        everything = {key: kept for worker in workers for key, kept in worker.done.items()}
        assert len(everything) >= 4 * KILLS
        for key, (fence, result) in everything.items():
            answer = insist(reader.perform, claim(key, B))
            assert (answer.verdict, answer.fence, answer.result) == (
                Verdict.REPLAY,
                fence,
                result,
            ), key.value
    finally:
        reader.close()


def _until_all_continue(workers: list[Worker], before: list[int]) -> None:
    until = time.monotonic() + 120
    while any(len(w.done) < had + 2 for w, had in zip(workers, before, strict=True)):
        assert not any(worker.error for worker in workers), [worker.error for worker in workers]
        assert time.monotonic() < until, "a worker does not continue without the leader"
        time.sleep(0.02)


def test_without_a_quorum_nothing_starts_and_the_next_claim_does(client: Any, cluster: Any) -> None:
    key, pending = Key("before"), Key("pending")
    fence = client.perform(claim(key)).fence
    leader = leader_of(cluster)
    stopped = [leader, next(node for node in cluster.nodes if node is not leader)]
    hurried = type(client)(f"{cluster.url}/orders?timeout=1")
    for node in stopped:
        node.pause()
    try:
        for request in (claim(pending), complete(key, fence), Read(key.id)):
            with pytest.raises(StoreUnavailableError) as caught:
                hurried.perform(request)
            assert caught.value.retryable
    finally:
        for node in stopped:
            node.resume()
        hurried.close()
    cluster.await_health()
    # What was unknown is asked again with the same owner: it was done, or it is done now; once either way.
    answer = insist(client.perform, claim(pending))
    assert (answer.verdict, answer.attempt) == (Verdict.WON, 1)
    assert insist(client.perform, complete(key, fence)) is Ack.OK
    assert client.perform(Read(key.id)).state is State.COMPLETED
    assert client.perform(claim(pending, B)).verdict is Verdict.BUSY


def test_a_member_that_hangs_is_left_for_another(client: Any, cluster: Any) -> None:
    client.perform(claim(Key("first")))
    hung = cluster.nodes[client.store.router.member]
    hung.pause()
    try:
        assert insist(client.perform, claim(Key("second"))).verdict is Verdict.WON
        assert cluster.nodes[client.store.router.member] is not hung
        assert client.perform(claim(Key("second"), B)).verdict is Verdict.BUSY
    finally:
        hung.resume()


def test_a_waiter_is_woken_when_its_member_dies(client: Any, cluster: Any) -> None:
    key = Key("waited for")
    client.perform(claim(key))
    waiting = threading.Thread(target=client.watch, args=(key.id, 200.0))
    waiting.start()
    listener = (
        client.store.blocking_store() if hasattr(client, "_runner") else client.store
    ).wakeups
    while listener._stream is None:
        time.sleep(0.01)
    cluster.nodes[client.store.router.member].kill()
    waiting.join(100)
    assert not waiting.is_alive(), "the waiter sleeps on, though its stream is gone"


def test_the_doctor_examines_every_member(client: Any, cluster: Any) -> None:
    findings = client.doctor()
    assert [one.what for one in findings if one.level != "ok"] == []
    assert any("3 voting members: 1 may fail" in one.what for one in findings)
    cluster.nodes[2].kill()
    findings = insist(lambda _: client.doctor(), None)
    warned = [one.what for one in findings if one.level == "warn"]
    assert any("does not answer" in what for what in warned)


def test_an_operators_act_is_not_repeated_when_its_outcome_is_unknown(cluster: Any) -> None:
    """To repeat it would release the key twice, and write two entries into its audit trail."""
    from twicesafe._core.protocol import Fail, History, Release
    from twicesafe._engines.etcd.routing import MemberAttempt

    client = KINDS["blocking"](f"{cluster.url}/orders")
    key = Key("held")
    fence = client.perform(claim(key)).fence
    assert client.perform(Fail(key.id, A, fence, 0, 5, MINUTE, hold=True)) is Ack.OK
    attempt, attempts = client.store._attempt, []

    def cut(step: Any) -> Any:
        reply = attempt(step)
        if isinstance(step, MemberAttempt) and step.call.once:
            attempts.append(step)
            raise ConnectionResetError("the reply was lost")
        return reply

    client.store._attempt = cut
    try:
        with pytest.raises(StoreUnavailableError):
            client.perform(Release(key.id, "ann", "ticket 7", MINUTE))
    finally:
        client.store._attempt = attempt
    assert len(attempts) == 1
    assert [entry.by for entry in client.perform(History(key.id))] == ["ann"]
    client.close()
