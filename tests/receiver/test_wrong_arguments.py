"""A URL where a store belongs, a store where a URL belongs: the error says what to write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from twicesafe import (
    AsyncInbox,
    AsyncMessageHandler,
    AsyncOutbox,
    AsyncReceiver,
    ConfigurationError,
    Inbox,
    MessageHandler,
    Outbox,
    Receiver,
    UsageError,
)
from twicesafe.asgi import IdempotencyMiddleware as Asgi
from twicesafe.stores.memory import AsyncMemoryStore, MemoryStore
from twicesafe.wsgi import IdempotencyMiddleware as Wsgi

SECRET = "postgresql://me:hunter2@db/shop"
BLOCKING = [Receiver, Inbox, Outbox]
ASYNC = [AsyncReceiver, AsyncInbox, AsyncOutbox]


class Payments(MessageHandler[str, str]):
    def key(self, message: str) -> str:
        return message

    def handle(self, message: str) -> str:
        return message


class AsyncPayments(AsyncMessageHandler[str, str]):
    def key(self, message: str) -> str:
        return message

    async def handle(self, message: str) -> str:
        return message


@pytest.mark.parametrize("cls", [*BLOCKING, *ASYNC])
def test_a_constructor_that_gets_a_url(cls: Any):
    with pytest.raises(UsageError) as told:
        cls(SECRET)
    assert f"use {cls.__name__}.open('postgresql://me:***@db/shop')" in str(told.value)
    assert "hunter2" not in str(told.value)
    with pytest.raises(UsageError, match=f"not NoneType: use {cls.__name__}.open"):
        cls(None)


@pytest.mark.parametrize("cls", [*BLOCKING, *ASYNC])
def test_a_constructor_that_gets_a_store_of_the_other_kind(cls: Any):
    if cls in BLOCKING:
        with pytest.raises(UsageError, match=f"is an async store: use Async{cls.__name__}"):
            cls(AsyncMemoryStore())
    else:
        other = cls.__name__.removeprefix("Async")
        with pytest.raises(UsageError, match=f"is a blocking store: use {other}"):
            cls(MemoryStore())


@pytest.mark.parametrize("cls", [*BLOCKING, *ASYNC])
def test_open_that_gets_a_store_or_a_path(cls: Any):
    with pytest.raises(UsageError, match=r"takes a URL, not MemoryStore: .* Receiver\(store\)"):
        cls.open(MemoryStore())
    with pytest.raises(UsageError, match=r"write 'sqlite:///keys\.db'"):
        cls.open(Path("keys.db"))


@pytest.mark.parametrize(
    "layer, wanted, other",
    [
        (lambda receiver: Asgi(None, receiver=receiver), "AsyncReceiver", MemoryStore),
        (lambda receiver: Wsgi(None, receiver=receiver), "Receiver", AsyncMemoryStore),
        (Payments, "Receiver", AsyncMemoryStore),
        (AsyncPayments, "AsyncReceiver", MemoryStore),
    ],
)
def test_a_layer_that_gets_something_else_than_its_receiver(
    layer: Any, wanted: str, other: type[Any]
):
    with pytest.raises(ConfigurationError) as told:
        layer(SECRET)
    assert f"use receiver={wanted}.open('postgresql://me:***@db/shop')" in str(told.value)
    with pytest.raises(ConfigurationError, match=f"use receiver={wanted}\\(store\\)"):
        layer(other())
    wrong: Any = Receiver(MemoryStore()) if wanted == "AsyncReceiver" else AsyncReceiver
    with pytest.raises(ConfigurationError, match=f"needs an? {wanted}, and this is"):
        layer(wrong)
