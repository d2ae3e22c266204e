"""What objects show of themselves: what differs and where they are; no key, scope, value or password."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from twicesafe import (
    AsyncInbox,
    AsyncOutbox,
    AsyncOutboxRelay,
    AsyncReceiver,
    Backoff,
    Inbox,
    Key,
    Outbox,
    OutboxRelay,
    Policy,
    Receiver,
)
from twicesafe.regions import Follower, Regions

PASSWORD = "hunter2"


class _Cipher:
    def __init__(self) -> None:
        self.secret = PASSWORD

    def __repr__(self) -> str:
        return f"Cipher({self.secret})"

    def encode(self, value: Any, declared: Any) -> bytes:
        return b""

    def decode(self, data: bytes, declared: Any) -> Any:
        return None


def test_a_policy_shows_what_differs_from_the_default():
    assert repr(Policy()) == "Policy()"
    assert repr(Policy(lease=45, takeover="hold")) == "Policy(lease=45, takeover='hold')"
    assert repr(Policy(retention="7d")) == "Policy(retention=604800)"
    assert (
        repr(Policy(remember=(ValueError, KeyError))) == "Policy(remember=(ValueError, KeyError,))"
    )
    assert repr(Policy(backoff=Backoff(first=5))).startswith("Policy(backoff=Backoff(first=5.0")
    assert repr(Policy(codec=_Cipher())) == "Policy(codec=_Cipher)"


@pytest.mark.parametrize("cls", [Receiver, AsyncReceiver])
def test_a_receiver_shows_its_store_and_its_policy(cls: Any):
    name = cls.__name__
    receiver = cls.open("memory://")
    assert repr(receiver) == f"<{name} memory://>"
    other = receiver.options(scope=("acct_1", "charges"), policy=Policy(lease=5))
    assert repr(other) == f"<{name} memory:// scope: 2 parts Policy(lease=5)>"


@pytest.mark.parametrize("cls", [Inbox, AsyncInbox, Outbox, AsyncOutbox])
async def test_an_inbox_and_an_outbox_show_their_database(cls: Any, tmp_path: Path):
    shown = repr(cls.open(f"sqlite:///{tmp_path}/keys.db"))
    assert shown == f"<{cls.__name__} sqlite:///{tmp_path}/keys.db>"


@pytest.mark.parametrize("cls", [OutboxRelay, AsyncOutboxRelay])
async def test_a_relay_shows_its_database_and_the_kind_of_its_publisher(cls: Any, tmp_path: Path):
    url = f"sqlite:///{tmp_path}/keys.db"
    relay = cls.open(url, f"nats://me:{PASSWORD}@broker.example")
    assert repr(relay) == f"<{cls.__name__} {url} to JetStreamPublisher>"


def test_a_follower_and_regions_show_their_stores():
    stores = {"eu": "memory://eu", "us": "memory://us"}
    follower = Follower.open(*stores.values(), name="eu")
    assert repr(follower) == "<Follower 'eu': memory://eu to memory://us>"
    regions = Regions.open(stores, register="memory://register")
    assert repr(regions) == "<Regions eu, us; register: memory://register>"


@pytest.mark.parametrize("cls", [AsyncReceiver, AsyncInbox])
def test_a_url_is_shown_without_its_password(cls: Any):
    shown = repr(cls.open(f"postgresql://me:{PASSWORD}@db.example/shop"))
    assert shown == f"<{cls.__name__} postgresql://me:***@db.example/shop>"


def test_a_claim_an_outcome_and_a_record_show_no_key_and_no_value():
    receiver = Receiver.open("memory://")
    key = Key(f"tx-{PASSWORD}", scope=(PASSWORD,))
    claim = receiver.claim(key)
    short = receiver.key(key).short
    assert repr(claim) == f"<Claim of {short}, not entered>"
    with claim:
        assert repr(claim) == f"<Claim of {short}, new, attempt=1, fence={claim.fence}>"
        claim.complete(PASSWORD)
        assert repr(claim) == f"<Claim of {short}, completed, attempt=1, fence={claim.fence}>"
    with receiver.claim(key) as again:
        assert repr(again) == f"<Claim of {short}, duplicate, attempt=1, fence={claim.fence}>"
    with receiver.claim("released") as given_back:
        given_back.release()
        assert ", ended, " in repr(given_back)
    with receiver.claim("left") as left:
        pass
    assert ", ended, " in repr(left)
    outcome = receiver.process(key, str)
    assert repr(outcome) == (
        f"<Outcome replayed, value: str, attempt=1, key={short}, fence={claim.fence}>"
    )
    record = repr(receiver.record(key))
    assert record.startswith(f"<Record key={short}, completed, attempt=1, fence={claim.fence}, ")

    def refuse(message: str) -> None:
        raise ValueError(PASSWORD)

    (failure,) = receiver.process_many([PASSWORD], refuse, key=lambda message: message)
    assert repr(failure) == f"<Failure ValueError, key={receiver.key(PASSWORD).short}>"
    for shown in (repr(claim), repr(outcome), record, repr(failure)):
        assert PASSWORD not in shown


async def test_an_async_claim():
    receiver = AsyncReceiver.open("memory://")
    async with receiver.claim("k") as claim:
        assert repr(claim).startswith(f"<AsyncClaim of {receiver.key('k').short}, new, ")
