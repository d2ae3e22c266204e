"""Relays from URLs and from open stores, and what is said when the two are mixed up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.outbox.stage import AsyncBroker, Broker
from twicesafe import ConfigurationError, UsageError
from twicesafe.errors import UnsupportedByStoreError
from twicesafe.outbox import AsyncOutbox, AsyncOutboxRelay, Outbox, OutboxRelay
from twicesafe.stores import open_async_store, open_store

RELAYS = [OutboxRelay, AsyncOutboxRelay]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'x.db'}"


class Closing(Broker):
    closed = 0

    def close(self) -> None:
        self.closed += 1


def test_a_relay_closes_the_store_that_it_opened(url: str, monkeypatch: pytest.MonkeyPatch):
    publisher = Closing()
    relay = OutboxRelay.open(url, publisher, lease=1, max_attempts=3)
    closed: list[Any] = []
    monkeypatch.setattr(relay.store, "close", lambda: closed.append(relay.store))
    assert relay.drain() == 0
    relay.close()
    assert closed == [relay.store]
    assert publisher.closed == 1


def test_a_relay_leaves_a_store_open_that_it_was_given(url: str):
    with Outbox.open(url) as outbox:
        OutboxRelay(outbox.store, Broker()).close()
        assert outbox.depth().pending == 0


def test_the_store_is_closed_although_the_publisher_cannot_be(
    url: str, monkeypatch: pytest.MonkeyPatch
):
    class Broken(Broker):
        def close(self) -> None:
            raise OSError("no")

    relay = OutboxRelay.open(url, Broken())
    closed: list[Any] = []
    monkeypatch.setattr(relay.store, "close", lambda: closed.append(relay.store))
    with pytest.raises(OSError, match="no"):
        relay.close()
    assert closed == [relay.store]


def test_settings_that_are_refused_leave_no_store_open(url: str, monkeypatch: pytest.MonkeyPatch):
    from twicesafe._engines.sqlite import SqliteStore

    closed: list[Any] = []

    def close(store: SqliteStore) -> None:
        closed.append(store)

    monkeypatch.setattr(SqliteStore, "close", close)
    with pytest.raises(ConfigurationError, match="lease"):
        OutboxRelay.open(url, Broker(), lease=0)
    assert len(closed) == 1


async def test_an_async_relay_closes_the_store_that_it_opened(url: str):
    async with AsyncOutbox.open(url) as outbox:
        async with AsyncOutboxRelay.open(url, AsyncBroker()) as relay:
            assert relay.store is not outbox.store
        given = AsyncOutboxRelay(outbox.store, AsyncBroker())
        assert await given.drain() == 0
        await given.close()
        assert (await outbox.depth()).pending == 0


@pytest.mark.parametrize("relay", RELAYS)
def test_a_url_instead_of_a_store(relay: Any):
    said = rf"{relay.__name__}\(…\) takes a store, and this is a URL: use {relay.__name__}\.open\("
    with pytest.raises(UsageError, match=said) as caught:
        relay("postgresql://ana:secret@db/shop", Broker())
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("relay", RELAYS)
def test_a_store_instead_of_a_url(relay: Any, url: str):
    store = open_store(url)
    said = rf"{relay.__name__}\.open\(\) takes the URL of a store, not SqliteStore"
    with pytest.raises(UsageError, match=said):
        relay.open(store, Broker())
    store.close()


def test_an_outbox_instead_of_a_store(url: str):
    with (
        Outbox.open(url) as outbox,
        pytest.raises(UsageError, match=r"not Outbox: use its \.store"),
    ):
        OutboxRelay(outbox, Broker())  # type: ignore[arg-type]


def test_publisher_and_store_in_the_wrong_order(url: str):
    store = open_store(url)
    with pytest.raises(UsageError, match="takes a store, not Broker"):
        OutboxRelay(Broker(), store)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="is a store, not a publisher"):
        OutboxRelay.open("nats://localhost", url)
    with pytest.raises(ConfigurationError, match="is a publisher, not a store"):
        OutboxRelay.open("nats://localhost", Broker())
    store.close()


def test_a_store_of_the_other_kind(url: str):
    store = open_store(url)
    with pytest.raises(UsageError, match="SqliteStore is a blocking store: use OutboxRelay"):
        AsyncOutboxRelay(store, Broker())  # type: ignore[arg-type]
    with pytest.raises(
        UsageError, match="AsyncSqliteStore is an async store: use AsyncOutboxRelay"
    ):
        OutboxRelay(open_async_store(url), Broker())  # type: ignore[arg-type]
    store.close()


@pytest.mark.parametrize("relay", RELAYS)
def test_a_store_without_an_outbox(relay: Any):
    with pytest.raises(UnsupportedByStoreError, match="cannot hold an outbox"):
        relay.open("memory://", Broker())


@pytest.mark.parametrize("relay", RELAYS)
def test_a_function_that_takes_no_message_is_refused(relay: Any, url: str):
    """Each message would be refused, and every lane parked."""
    with pytest.raises(ConfigurationError, match=r"is called with \(message\), and send does not"):
        relay.open(url, send)


def send() -> None: ...
