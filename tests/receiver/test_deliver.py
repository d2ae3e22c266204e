"""`MessageHandler.deliver`: the verdict for a consumer loop of your own."""

from __future__ import annotations

from typing import Any

import pytest

from twicesafe import AsyncMessageHandler, AsyncReceiver, Backoff, MessageHandler, Policy, Receiver
from twicesafe.consumers import DeadLetter, Retry
from twicesafe.errors import (
    FingerprintMismatchError,
    MissingKeyError,
    ParkedError,
    StillInProgressError,
    StoreUnavailableError,
    UsageError,
)

POLICY = Policy(max_attempts=2, in_flight="reject", backoff=Backoff(first=7, jitter=0))


class Payments(MessageHandler[dict[str, Any], str]):
    def key(self, message: dict[str, Any]) -> Any:
        return message.get("id")

    def handle(self, message: dict[str, Any]) -> str:
        if "error" in message:
            raise message["error"]
        return "paid"

    def fingerprint(self, message: dict[str, Any]) -> object:
        return message.get("cents")


@pytest.fixture
def payments() -> Any:
    with Receiver.open("memory://", policy=POLICY) as receiver:
        yield Payments(receiver)


def test_the_work_and_its_repeat_are_acknowledged(payments: Payments) -> None:
    first, again = payments.deliver({"id": "a"}), payments.deliver({"id": "a"})
    assert first.action == again.action == "ack"
    assert first.outcome is not None
    assert again.outcome is not None
    assert (first.outcome.replayed, again.outcome.replayed) == (False, True)


def test_a_failure_is_a_retry_and_then_a_dead_letter(payments: Payments) -> None:
    message = {"id": "a", "error": ValueError("no")}
    first = payments.deliver(message)
    assert (first.action, first.retry_after) == ("retry", 7)
    assert isinstance(first.error, Retry)
    assert isinstance(first.error.__cause__, ValueError)
    early = payments.deliver(message)
    assert early.action == "retry"
    assert isinstance(early.error, StillInProgressError)
    assert 6 < (early.retry_after or 0) <= 7
    payments.receiver.release(payments.receiver.key("a"), by="test", why="no need to wait")


def test_the_last_attempt_is_a_dead_letter_and_parks_the_key() -> None:
    policy = POLICY.replace(backoff=Backoff(first=0))
    with Receiver.open("memory://", policy=policy) as receiver:
        payments = Payments(receiver)
        message = {"id": "a", "error": ValueError("no")}
        assert [payments.deliver(message).action for _ in range(3)] == [
            "retry",
            "dead_letter",
            "dead_letter",
        ]
        assert isinstance(payments.deliver(message).error, ParkedError)


def test_the_handler_may_decide_and_so_may_recover(payments: Payments) -> None:
    assert payments.deliver({"id": "a", "error": Retry(after="1m")}).retry_after == 60
    assert payments.deliver({"id": "b", "error": DeadLetter("x")}).action == "dead_letter"
    payments.recover = lambda *_: DeadLetter("never")  # type: ignore[method-assign]
    verdict = payments.deliver({"id": "c", "error": ValueError("no")})
    assert (verdict.action, str(verdict.error)) == ("dead_letter", "never")


def test_what_can_never_be_handled_is_a_dead_letter(payments: Payments) -> None:
    assert isinstance(payments.deliver({}).error, MissingKeyError)
    payments.deliver({"id": "a", "cents": 1})
    other = payments.deliver({"id": "a", "cents": 2})
    assert other.action == "dead_letter"
    assert isinstance(other.error, FingerprintMismatchError)


def test_an_outage_is_a_retry(payments: Payments, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise StoreUnavailableError("away")

    monkeypatch.setattr(payments.receiver._runtime, "run", away)
    verdict = payments.deliver({"id": "a"})
    assert (verdict.action, verdict.retry_after) == ("retry", 2.0)


async def test_async_handlers_too() -> None:
    class Async(AsyncMessageHandler[str, str]):
        def key(self, message: str) -> str:
            return message

        async def handle(self, message: str) -> str:
            if message == "bad":
                raise DeadLetter("no")
            return message

    async with AsyncReceiver.open("memory://") as receiver:
        handler = Async(receiver)
        assert [(await handler.deliver(m)).action for m in ("a", "a", "bad")] == [
            "ack",
            "ack",
            "dead_letter",
        ]


def test_a_generator_is_not_taken_for_work_that_is_done() -> None:
    """Its body has not run. An acknowledgement would lose the message."""

    class Items(MessageHandler[str, Any]):
        def key(self, message: str) -> str:
            return message

        def handle(self, message: str) -> Any:
            yield message

    with Receiver.open("memory://") as receiver:
        verdict = Items(receiver).deliver("a")
        assert verdict.action == "dead_letter"
        assert isinstance(verdict.error, UsageError)
        assert receiver.stats().total == 0


async def test_an_async_generator_is_not_taken_for_work_that_is_done() -> None:
    class Items(AsyncMessageHandler[str, Any]):
        def key(self, message: str) -> str:
            return message

        async def handle(self, message: str) -> Any:
            yield message

    async with AsyncReceiver.open("memory://") as receiver:
        verdict = await Items(receiver).deliver("a")
    assert verdict.action == "dead_letter"
    assert isinstance(verdict.error, UsageError)
