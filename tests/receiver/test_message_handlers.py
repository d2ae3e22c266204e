"""Message handlers as classes: key from the message, payload checked, dead letters handed over."""

from __future__ import annotations

from typing import Any

import pytest

from tests.receiver.bench import Bench
from twicesafe import (
    AsyncMessageHandler,
    CorruptRecordError,
    FingerprintMismatchError,
    HeldError,
    Key,
    MessageHandler,
    ParkedError,
    State,
    UsageError,
)
from twicesafe import events as ev
from twicesafe._core.protocol import Ack, Read, Rewrite


class Payments(MessageHandler[dict[str, Any], str]):
    def __init__(self, receiver: Any) -> None:
        super().__init__(receiver)
        self.handled: list[Any] = []
        self.letters: list[tuple[Any, str]] = []

    def key(self, message: dict[str, Any]) -> Any:
        return message["id"]

    def handle(self, message: dict[str, Any]) -> str:
        self.handled.append(message)
        if message.get("poison"):
            raise ValueError("poison")
        return f"paid {message['id']}"

    def dead_letter(self, message: dict[str, Any], error: Exception) -> None:
        self.letters.append((message, type(error).__name__))


class AsyncPayments(AsyncMessageHandler[dict[str, Any], str]):
    __init__ = Payments.__init__  # type: ignore[assignment]
    key = Payments.key  # type: ignore[assignment]

    async def handle(self, message: dict[str, Any]) -> str:
        return Payments.handle(self, message)  # type: ignore[arg-type]

    async def dead_letter(self, message: dict[str, Any], error: Exception) -> None:
        Payments.dead_letter(self, message, error)  # type: ignore[arg-type]


def payments(bench: Bench) -> Any:
    if not bench.is_async:
        return Payments(bench.receiver)
    handler = AsyncPayments.__new__(AsyncPayments)
    AsyncMessageHandler.__init__(handler, bench.receiver)
    handler.handled, handler.letters = [], []  # type: ignore[attr-defined]
    return handler


def test_a_redelivery_is_replayed(bench: Bench) -> None:
    handler = payments(bench)
    first = bench.call(handler, {"id": "1"})
    second = bench.call(handler, {"id": "1"})
    assert (first.value, first.replayed) == ("paid 1", False)
    assert (second.value, second.replayed) == ("paid 1", True)
    assert len(handler.handled) == 1


def test_a_reused_id_is_a_dead_letter(bench: Bench) -> None:
    handler = payments(bench)
    bench.call(handler, {"id": "1", "amount": 5})
    with pytest.raises(FingerprintMismatchError) as caught:
        bench.call(handler, {"id": "1", "amount": 6})
    assert caught.value.fields == ("amount",)
    assert handler.letters == [({"id": "1", "amount": 6}, "FingerprintMismatchError")]
    assert len(handler.handled) == 1


@pytest.mark.parametrize(
    "message, error",
    [
        ({}, "KeyError"),
        ({"id": ""}, "InvalidKeyError"),
        ({"id": None}, "MissingKeyError"),
        ({"id": "1", "amount": object()}, "UsageError"),
    ],
    ids=["no id", "empty id", "null id", "content that cannot be compared"],
)
def test_a_message_that_can_never_be_handled_is_a_dead_letter(
    bench: Bench, message: Any, error: str
) -> None:
    handler = payments(bench)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - its name is compared
        bench.call(handler, message)
    assert type(caught.value).__name__ == error
    assert handler.letters == [(message, error)]
    verdict = bench.call(handler.deliver, message)
    assert (verdict.action, type(verdict.error).__name__) == ("dead_letter", error)
    assert handler.handled == []


def test_a_closed_receiver_says_nothing_about_the_message(bench: Bench) -> None:
    handler = payments(bench)
    bench.call(bench.receiver.close)
    verdict = bench.call(handler.deliver, {"id": "1"})
    assert (verdict.action, type(verdict.error)) == ("retry", UsageError)


def test_parked_messages_are_dead_letters_and_ordinary_failures_are_not(bench: Bench) -> None:
    bench.policy(max_attempts=2)
    handler = payments(bench)
    message = {"id": "1", "poison": True}
    for _ in range(2):
        with pytest.raises(ValueError, match="poison"):
            bench.call(handler, message)
    assert handler.letters == []
    with pytest.raises(ParkedError):
        bench.call(handler, message)
    assert handler.letters == [(message, "ParkedError")]


def test_held_messages_are_dead_letters(bench: Bench) -> None:
    bench.policy(takeover="hold")
    handler = payments(bench)
    key = handler.receiver.key("1")
    from twicesafe._core.protocol import ClaimRequest

    bench.call(bench.store.perform, ClaimRequest(key, b"dead worker", 1000, 5, True))
    bench.clock.advance(2)
    with pytest.raises(HeldError):
        bench.call(handler, {"id": "1"})
    assert handler.letters == [({"id": "1"}, "HeldError")]


def test_classes_do_not_share_keys_and_keep_the_receivers_scope(bench: Bench) -> None:
    class Refunds(type(payments(bench))):  # type: ignore[misc]
        pass

    refunds = Refunds.__new__(Refunds)
    (AsyncMessageHandler if bench.is_async else MessageHandler).__init__(
        refunds, bench.receiver.options(scope=("tenant",))
    )
    refunds.handled, refunds.letters = [], []
    handler = payments(bench)
    assert not bench.call(handler, {"id": "1"}).replayed
    outcome = bench.call(refunds, {"id": "1"})
    assert not outcome.replayed
    assert outcome.key.scope[0] == "tenant"
    assert outcome.key.scope[1].endswith("Refunds")


def test_two_handlers_of_one_message_both_run_also_with_ready_keys(bench: Bench) -> None:
    handler = payments(bench)
    handler.key = lambda message: Key.from_message(type="payment", id=message["id"], source="shop")
    scope = bench.call(handler, {"id": "1"}).key.scope
    assert scope[-2:] == ("shop", "payment")
    assert scope[:-2] == handler.receiver.scope


def test_a_handler_without_key_or_handle_cannot_be_made(bench: Bench) -> None:
    class Half(MessageHandler[Any, Any]):
        def key(self, message: Any) -> Any:
            return "k"

    with pytest.raises(TypeError, match="handle"):
        Half(bench.receiver)  # type: ignore[abstract]


@pytest.mark.parametrize("bench", ["memory-sync", "memory-async"], indirect=True)
def test_a_payload_of_bytes_is_hashed_not_stored(bench: Bench) -> None:
    bench.receiver = bench.receiver.options(fingerprint=lambda body: body)
    bench.process("k", lambda body: "ok", b"secret payload")
    (row,) = bench._memory._rows.values()
    assert b"secret" not in row.fingerprint
    assert bench.process("k", lambda body: "ok", b"secret payload").replayed
    with pytest.raises(FingerprintMismatchError):
        bench.process("k", lambda body: "ok", b"other payload")


class Renamed:
    """The codec of a later deployment: it writes, and cannot read what is there."""

    def encode(self, value: Any, declared: Any = Any) -> bytes:
        return b"paid"

    def decode(self, payload: bytes, declared: Any = Any) -> Any:
        raise KeyError("receipt")


def test_a_repeat_of_done_work_whose_result_cannot_be_read_is_acknowledged(bench: Bench) -> None:
    """Tried again until the record expires, it would run again."""
    bench.policy(codec=Renamed())
    handler = payments(bench)
    assert bench.call(handler.deliver, {"id": "m"}).action == "ack"
    verdict = bench.call(handler.deliver, {"id": "m"})
    assert (verdict.action, type(verdict.error)) == ("ack", CorruptRecordError)
    assert len(handler.handled) == 1
    assert [event.error for event in bench.events(ev.ResultUnreadable)] == ["CorruptRecordError"]


def test_a_repeat_of_failed_work_whose_error_cannot_be_read_is_a_dead_letter(bench: Bench) -> None:
    bench.policy(remember=(ValueError,))
    handler = payments(bench)
    message = {"id": "m", "poison": True}
    bench.call(handler.deliver, message)
    row = bench.call(bench.store.inner.perform, Read(handler.receiver.key("m").id))
    ask = Rewrite(row.id, State.FAILED, row.result, b"damaged")
    assert bench.call(bench.store.inner.perform, ask) is Ack.OK
    verdict = bench.call(handler.deliver, message)
    assert (verdict.action, type(verdict.error)) == ("dead_letter", CorruptRecordError)


def test_an_unreadable_answer_of_an_inner_key_says_nothing_about_the_message(bench: Bench) -> None:
    handler = payments(bench)
    inner = CorruptRecordError("of another key")
    inner.done = True
    handler.handled = Raising(inner)
    verdict = bench.call(handler.deliver, {"id": "m"})
    assert (verdict.action, verdict.error.__cause__) == ("retry", inner)


class Raising:
    def __init__(self, error: Exception) -> None:
        self.error = error

    def append(self, _: Any) -> None:
        raise self.error
