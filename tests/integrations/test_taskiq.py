"""Taskiq, with its own receiver, on its broker in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

import pytest
from taskiq import Context, InMemoryBroker, SimpleRetryMiddleware, TaskiqDepends

from twicesafe import AsyncReceiver, Key, Policy, current_claim
from twicesafe.consumers import DeadLetter, Retry
from twicesafe.errors import ConfigurationError, ParkedError, UsageError
from twicesafe.integrations.taskiq import idempotent_task

DEPENDS: Any = TaskiqDepends()
POLICY = Policy(max_attempts=3, wait=0)


@pytest.fixture
async def receiver() -> AsyncIterator[AsyncReceiver]:
    async with AsyncReceiver.open("memory://", policy=POLICY) as opened:
        yield opened


@pytest.fixture
async def broker() -> AsyncIterator[InMemoryBroker]:
    made = InMemoryBroker(await_inplace=True).with_middlewares(
        SimpleRetryMiddleware(default_retry_count=POLICY.max_attempts)
    )
    await made.startup()
    yield made
    await made.shutdown()


async def sent(task: Any, id_: str, *args: Any) -> Any:
    """The result of this delivery of a task."""
    return await (await task.kicker().with_task_id(id_).kiq(*args)).wait_result(timeout=60)


async def test_a_repeat_gets_the_recorded_result(
    broker: InMemoryBroker, receiver: AsyncReceiver
) -> None:
    ran: list[int] = []

    @broker.task
    @idempotent_task(receiver)
    async def charge(cents: int, context: Context = DEPENDS) -> dict[str, Any]:
        ran.append(cents)
        return {"cents": cents, "id": context.message.task_id}

    for _ in range(2):
        result = await sent(charge, "t", 5)
        assert result.return_value == {"cents": 5, "id": "t"}
    assert ran == [5]


async def test_parameters_are_still_parsed(broker: InMemoryBroker, receiver: AsyncReceiver) -> None:
    @broker.task
    @idempotent_task(receiver)
    async def charge(cents: int) -> str:
        return type(cents).__name__

    assert (await sent(charge, "t", "5")).return_value == "int"


async def test_taskiqs_retries_are_attempts(
    broker: InMemoryBroker, receiver: AsyncReceiver
) -> None:
    attempts: list[int] = []

    @broker.task(retry_on_error=True)
    @idempotent_task(receiver)
    async def flaky() -> None:
        claim = current_claim()
        assert claim is not None
        attempts.append(claim.attempt)
        raise OSError("not yet")

    result = await sent(flaky, "t")
    assert attempts == [1, 2, 3]
    assert isinstance(result.error, OSError)
    assert isinstance((await sent(flaky, "t")).error, ParkedError)
    assert attempts == [1, 2, 3]


async def test_work_in_progress_elsewhere_is_requeued(
    broker: InMemoryBroker, receiver: AsyncReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[str | None] = []

    @broker.task(task_name="slow")
    @idempotent_task(receiver)
    async def slow(context: Context = DEPENDS) -> str:
        counts.append(context.message.labels.get("X-Taskiq-requeue"))
        return "ran"

    elsewhere = receiver.claim(Key("t", scope=("slow",)))
    ours, sleep = asyncio.get_running_loop(), asyncio.sleep

    async def pause(seconds: float) -> None:
        if asyncio.get_running_loop() is not ours:  # of a thread that another test has left
            return await sleep(seconds)
        return await elsewhere.release()

    async with elsewhere:
        monkeypatch.setattr("twicesafe.integrations.taskiq.asyncio.sleep", pause)
        assert (await sent(slow, "t")).return_value == "ran"
    assert counts == ["1"]


async def test_a_task_may_decide_as_a_consumer_does(
    broker: InMemoryBroker, receiver: AsyncReceiver
) -> None:
    ran: list[str] = []

    @broker.task
    @idempotent_task(receiver)
    async def decide(how: str) -> str:
        ran.append(how)
        if how == "dead":
            raise DeadLetter("no address")
        if ran.count(how) == 1:
            raise Retry(after=0)
        return "done"

    assert (await sent(decide, "a", "again")).return_value == "done"
    assert isinstance((await sent(decide, "b", "dead")).error, DeadLetter)
    assert ran == ["again", "again", "dead"]


async def test_a_key_of_the_arguments(broker: InMemoryBroker, receiver: AsyncReceiver) -> None:
    ran: list[str] = []

    @broker.task
    @idempotent_task(receiver, key=lambda order: order)
    async def ship(order: str) -> None:
        ran.append(order)

    await sent(ship, "t-1", "o-1")
    await sent(ship, "t-2", "o-1")
    assert ran == ["o-1"]


class Session:
    """Of no use after its delivery."""


async def test_dependencies_are_no_part_of_what_was_sent(
    broker: InMemoryBroker, receiver: AsyncReceiver
) -> None:
    """Each delivery has new ones. They are not compared, and the key is not made of them."""
    ran: list[str] = []
    depends: Any = TaskiqDepends(Session)

    @broker.task
    @idempotent_task(receiver.options(fingerprint=True), key=lambda order, **_: order)
    async def ship(
        order: str, plain: Annotated[Session, TaskiqDepends()], *, other: Session = depends
    ) -> bool:
        ran.append(order)
        return isinstance(plain, Session) and isinstance(other, Session)

    @broker.task
    @idempotent_task(receiver.options(fingerprint=True), key=lambda order: order)
    async def pack(order: str, cents: int = 1, session: Session = depends) -> bool:
        ran.append(order)
        return isinstance(session, Session)

    for id_ in ("t-1", "t-2"):
        assert (await sent(ship, id_, "o-1")).return_value is True
        assert (await sent(pack, id_, "o-2")).return_value is True
    assert ran == ["o-1", "o-2"]


async def test_arguments_that_cannot_be_compared_fail_and_are_not_requeued(
    broker: InMemoryBroker, receiver: AsyncReceiver
) -> None:
    @broker.task
    @idempotent_task(receiver.options(fingerprint=lambda _: object()))
    async def ship(order: str) -> None: ...

    assert isinstance((await sent(ship, "t", "o-1")).error, UsageError)


async def test_a_call_as_a_function_is_only_that(
    broker: InMemoryBroker, receiver: AsyncReceiver
) -> None:
    ran: list[int] = []

    @broker.task
    @idempotent_task(receiver)
    async def plain() -> None:
        ran.append(1)

    await plain()
    await plain()
    assert ran == [1, 1]


async def test_what_cannot_be_protected_is_refused(receiver: AsyncReceiver) -> None:
    with pytest.raises(ConfigurationError, match="async function"):
        idempotent_task(receiver)(lambda: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(ConfigurationError, match="outage='run'"):
        idempotent_task(receiver.options(policy=Policy(outage="run")))
