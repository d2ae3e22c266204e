"""The page of relays and consumers: what the store and the brokers really know."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.consumers.test_dead_letters import Place
from tests.dashboard.conftest import Visitor, words
from twicesafe import Outbox, Receiver
from twicesafe.consumers import Consumer
from twicesafe.dashboard import dashboard
from twicesafe.errors import ConfigurationError
from twicesafe.stores import Heartbeat

Enter = Callable[..., Visitor]


async def test_relays_are_those_that_hold_leases(visit: Enter, receiver: Receiver, tmp_path: Path):
    visitor = visit()
    assert "There is no outbox in this store" in words(await visitor.get("/running"))
    with Outbox.open(f"sqlite:///{tmp_path}/keys.db") as outbox:
        assert "No relay ran in the last day" in words(await visitor.get("/running"))
        with contextlib.closing(sqlite3.connect(tmp_path / "keys.db")) as connection, connection:
            connection.execute("BEGIN")
            for key in ("ann", "bob", "cat"):
                outbox.add(connection, topic="invoices", body="x", key=key)
        assert "Without a relay 3 messages" in words(await visitor.get("/running"))
        port = outbox.store.outbox
        port.perform(Heartbeat(b"a" * 16, 60_000))
        (one,) = outbox.relays().relays
        assert (one.id, one.is_alive, one.slots, one.pending) == ("61" * 16, True, 64, 3)
        assert outbox.relays().unserved == 0
        page = words(await visitor.get("/running"))
        assert "Relays alive 1" in page
        assert "active 61616161 renews its lease 64 3" in page
        with contextlib.closing(sqlite3.connect(tmp_path / "keys.db")) as connection, connection:
            connection.execute("UPDATE twicesafe_outbox_relays SET seen_until = 1000")
            connection.execute("UPDATE twicesafe_outbox_slots SET lease_until = 1000")
        found = outbox.relays()
        assert [(one.is_alive, one.pending) for one in found.relays] == [(False, 0)]
        assert found.unserved == 3
        page = words(await visitor.get("/running"))
        assert "Relays alive 0" in page
        assert "gone 61616161 lease ended" in page


async def test_consumers_are_asked_for_at_their_broker(
    visit: Enter, receiver: Receiver, valkey: Any, tmp_path: Path
):
    place = Place(valkey, receiver, f"sqlite:///{tmp_path}/keys.db")
    visitor = visit(consumers=[place.url])
    missing = words(await visitor.get("/running"))
    assert "Redis could not be asked" in missing, "there is no such stream, and none is created"
    assert place.client.exists(place.stream) == 0
    place.send("o-1")
    assert place.consume(lambda message: None).ran == 1
    for id_ in ("o-2", "o-3"):
        place.send(id_)
    page = words(await visitor.get("/running"))
    assert "billing" in page
    assert "Waiting 2 Unacknowledged 0 Processes 0" in page
    with Consumer.open(f"{place.url}&consumer=worker-7", receiver=receiver) as consumer:
        consumer.drain(lambda message: None, idle=0.1)
        page = words(await visitor.get("/running"))
        assert "Waiting 0 Unacknowledged 0 Processes 1" in page
        assert "worker-7" in page


def test_what_is_no_consumer_is_refused(receiver: Receiver):
    for wrong in ("redis://h?stream=s&group=g", ["postgresql:///shop"]):
        with pytest.raises(ConfigurationError):
            dashboard(receiver, resolve_access=lambda _: "all", consumers=wrong)
