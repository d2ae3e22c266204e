"""Dramatiq, with its own worker: on its broker in memory, and on a real Valkey."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dramatiq
import pytest
from dramatiq.brokers.redis import RedisBroker
from dramatiq.brokers.stub import StubBroker
from dramatiq.results import Results
from dramatiq.results.backends import StubBackend

from twicesafe import Key, Policy, Receiver, current_claim
from twicesafe.consumers import DeadLetter
from twicesafe.errors import ConfigurationError
from twicesafe.integrations.dramatiq import IdempotentActors

POLICY = Policy(max_attempts=3)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver.open("memory://", policy=POLICY) as opened:
        yield opened


def ready(broker: Any, receiver: Receiver) -> Any:
    broker.add_middleware(Results(backend=StubBackend(), store_results=True))
    broker.add_middleware(IdempotentActors(receiver))
    return broker


@pytest.fixture(params=["memory", "valkey"])
def broker(request: pytest.FixtureRequest, receiver: Receiver) -> Iterator[Any]:
    if request.param == "memory":
        made: Any = StubBroker()
    else:
        server = request.getfixturevalue("valkey")
        prefix = request.getfixturevalue("valkey_url").rpartition("=")[2]
        made = RedisBroker(url=server.url, namespace=prefix)
    yield ready(made, receiver)
    made.close()
    if request.param == "valkey":
        made.client.close()


@contextmanager
def working(broker: Any) -> Iterator[None]:
    worker = dramatiq.Worker(broker, worker_timeout=10, worker_threads=2)
    worker.start()
    try:
        yield
        if isinstance(broker, StubBroker):
            broker.join("default", timeout=60_000, fail_fast=False)
        else:
            broker.join("default", timeout=60_000)
        worker.join()
    finally:
        worker.stop()


def got(broker: Any, message: Any) -> Any:
    backend = broker.get_results_backend()
    return message.get_result(backend=backend, block=True, timeout=60_000)


def actor(broker: Any, **options: Any) -> Any:
    return dramatiq.actor(broker=broker, **{"min_backoff": 1, "max_backoff": 1} | options)


def test_a_repeat_gets_the_recorded_result(broker: Any) -> None:
    ran: list[int] = []

    @actor(broker)
    def charge(cents: int) -> int:
        ran.append(cents)
        return cents + len(ran)

    message = charge.message(5)
    with working(broker):
        broker.enqueue(message)
        assert got(broker, message) == 6
        broker.enqueue(message)
    assert got(broker, message) == 6
    assert ran == [5]


def test_dramatiqs_retries_are_attempts(broker: Any) -> None:
    attempts: list[int] = []

    @actor(broker)
    def flaky() -> str:
        claim = current_claim()
        assert claim is not None
        attempts.append(claim.attempt)
        if claim.attempt < 3:
            raise OSError("not yet")
        return "done"

    with working(broker):
        assert got(broker, flaky.send()) == "done"
    assert attempts == [1, 2, 3]


def test_an_async_actor(broker: Any) -> None:
    broker.add_middleware(dramatiq.middleware.AsyncIO())

    @actor(broker)
    async def charge(cents: int) -> int:
        return cents

    with working(broker):
        assert got(broker, charge.send(5)) == 5


@pytest.fixture
def stub(receiver: Receiver) -> Iterator[Any]:
    made = ready(StubBroker(), receiver)
    yield made
    made.close()


def test_after_the_last_attempt_it_is_a_dead_letter(stub: Any) -> None:
    ran: list[int] = []

    @actor(stub)
    def broken() -> None:
        ran.append(1)
        raise ValueError("no")

    message = broken.message()
    with working(stub):
        stub.enqueue(message)
    assert len(ran) == POLICY.max_attempts
    assert [one.message_id for one in stub.dead_letters] == [message.message_id]
    with working(stub):
        stub.enqueue(message)
    assert len(ran) == POLICY.max_attempts
    assert isinstance(stub.dead_letters[1].message_id, str)
    assert stub.dead_letters[1].options["max_retries"] == 0


@pytest.mark.parametrize("when", ["actor", "broker", None])
def test_dramatiqs_callbacks_hear_of_the_last_failure(receiver: Receiver, when: str | None) -> None:
    """Also if `retry_when` decides on retries, and would go on."""

    def always(retries: int, error: BaseException) -> bool:
        return True

    ran: list[int] = []
    told: list[tuple[str, str]] = []
    options = {"retry_when": always} if when == "actor" else {}
    retries = dramatiq.middleware.Retries(retry_when=always if when == "broker" else None)
    callbacks = dramatiq.middleware.Callbacks()
    stub = ready(StubBroker(middleware=[callbacks, retries]), receiver)

    @actor(stub, idempotent=False)
    def failed(message: dict[str, Any], error: dict[str, str]) -> None:
        told.append((message["message_id"], error["type"]))

    @actor(stub, idempotent=False)
    def exhausted(message: dict[str, Any], counts: dict[str, int]) -> None:
        told.append((message["message_id"], "exhausted"))

    @actor(stub, on_failure="failed", on_retry_exhausted="exhausted", **options)
    def broken() -> None:
        ran.append(1)
        raise ValueError("no")

    with working(stub):
        message = broken.send()
        stub.join("default", timeout=60_000, fail_fast=False)
    id_ = message.message_id
    assert len(ran) == POLICY.max_attempts
    assert sorted(told) == [(id_, "ValueError")] * len(ran) + [(id_, "exhausted")]
    assert [one.message_id for one in stub.dead_letters] == [id_]
    stub.close()


def test_an_actor_may_give_up(stub: Any) -> None:
    ran: list[int] = []

    @actor(stub)
    def unaddressed() -> None:
        ran.append(1)
        raise DeadLetter("no address")

    with working(stub):
        unaddressed.send()
    assert ran == [1]
    assert len(stub.dead_letters) == 1


def test_work_in_progress_elsewhere_is_put_off_and_uses_no_retry(
    stub: Any, receiver: Receiver
) -> None:
    retries: list[int] = []

    @actor(stub, max_retries=0)
    def slow() -> str:
        return "ran"

    message = slow.message()
    elsewhere = receiver.claim(Key(message.message_id, scope=("slow",)))

    class Release(dramatiq.Middleware):
        def after_skip_message(self, broker: Any, message: Any) -> None:
            retries.append(message.options.get("retries", 0))
            elsewhere.release()

    stub.add_middleware(Release())
    with elsewhere, working(stub):
        stub.enqueue(message)
        assert got(stub, message) == "ran"
    assert retries == [0]
    assert stub.dead_letters == []


def test_a_key_of_the_arguments(stub: Any) -> None:
    ran: list[str] = []

    @actor(stub, idempotency_key=lambda order: order["id"])
    def ship(order: dict[str, str]) -> None:
        ran.append(order["id"])

    with working(stub):
        ship.send({"id": "o-1"})
        stub.join("default", timeout=60_000)
        ship.send({"id": "o-1"})
    assert ran == ["o-1"]


def test_an_actor_that_wants_no_protection(stub: Any) -> None:
    ran: list[int] = []

    @actor(stub, idempotent=False)
    def tick() -> None:
        ran.append(1)

    message = tick.message()
    with working(stub):
        stub.enqueue(message)
        stub.enqueue(message)
    assert ran == [1, 1]


def test_a_call_as_a_function_is_only_that(stub: Any) -> None:
    """Also inside of another actor."""
    ran: list[int] = []

    @actor(stub)
    def inner() -> None:
        ran.append(1)

    @actor(stub)
    def outer() -> None:
        inner()
        inner()

    inner()
    with working(stub):
        outer.send()
    assert ran == [1, 1, 1]


def test_an_actor_that_was_declared_before_the_middleware(receiver: Receiver) -> None:
    ran: list[int] = []
    broker = StubBroker()

    @dramatiq.actor(broker=broker)
    def early() -> None:
        ran.append(1)

    broker.add_middleware(IdempotentActors(receiver))
    message = early.message()
    with working(broker):
        broker.enqueue(message)
        broker.join("default", timeout=60_000)
        broker.enqueue(message)
    assert ran == [1]
    broker.close()


def test_running_without_a_store_is_refused(receiver: Receiver) -> None:
    with pytest.raises(ConfigurationError, match="outage='run'"):
        IdempotentActors(receiver.options(policy=Policy(outage="run")))
