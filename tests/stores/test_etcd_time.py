"""etcd's own time: leases and retentions that really end. Everything else moves the time itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.stores.etcd_clients import KINDS, A, B, claim, complete
from twicesafe import Key
from twicesafe._core.protocol import Ack, Fail, Read, Renew, Verdict
from twicesafe._values.records import Cause

TIME_LIMIT = 60.0
KEY = Key("order-77")


@pytest.fixture(params=KINDS)
def client(request: pytest.FixtureRequest, etcd_url: str) -> Iterator[Any]:
    client = KINDS[request.param](etcd_url + "?timeout=120")
    yield client
    client.close()


def after(verdict: Verdict, ask: Callable[[], Any]) -> tuple[Any, float]:
    """The first answer that is not this verdict, and the seconds until it came."""
    began = time.monotonic()
    while (answer := ask()).verdict is verdict:
        assert answer.wait > 0
        assert time.monotonic() < began + TIME_LIMIT, f"still {verdict}"
        time.sleep(0.05)
    return answer, time.monotonic() - began


def test_a_claim_lasts_at_least_as_long_as_its_lease(client: Any) -> None:
    began = time.monotonic()
    first = client.perform(claim(KEY, lease=1500))
    taken, _ = after(Verdict.BUSY, lambda: client.perform(claim(KEY, B)))
    assert time.monotonic() - began >= 1.5
    assert (taken.verdict, taken.cause, taken.attempt) == (Verdict.WON, Cause.LEASE_EXPIRED, 2)
    assert taken.fence > first.fence
    assert client.perform(complete(KEY, first.fence, b"zombie")) is Ack.LOST


def test_a_renewed_claim_outlives_its_first_lease(client: Any) -> None:
    first = client.perform(claim(KEY, lease=1000))
    assert client.perform(Renew(KEY.id, A, first.fence, 600_000)) is Ack.OK
    other = Key("not renewed")
    client.perform(claim(other, lease=1000))
    after(Verdict.BUSY, lambda: client.perform(claim(other, B)))
    assert client.perform(claim(KEY, B)).verdict is Verdict.BUSY


def test_a_waiter_is_woken_when_the_lease_ends(client: Any) -> None:
    client.perform(claim(KEY, lease=1000))
    began = time.monotonic()
    client.watch(KEY.id, TIME_LIMIT)
    assert time.monotonic() - began < TIME_LIMIT / 2
    assert client.perform(claim(KEY, B)).verdict is Verdict.WON


def test_a_back_off_ends(client: Any) -> None:
    first = client.perform(claim(KEY))
    began = time.monotonic()
    assert client.perform(Fail(KEY.id, A, first.fence, 1500, 5, 600_000)) is Ack.OK
    assert client.perform(claim(KEY, B)).verdict is Verdict.RESTING
    again, _ = after(Verdict.RESTING, lambda: client.perform(claim(KEY, B)))
    assert time.monotonic() - began >= 1.5
    assert (again.verdict, again.cause) == (Verdict.WON, Cause.FAILED)


def test_a_retention_ends(client: Any) -> None:
    first = client.perform(claim(KEY))
    began = time.monotonic()
    client.perform(complete(KEY, first.fence, b"L" * 5000, retention=1500))
    assert client.perform(claim(KEY, B)).verdict is Verdict.REPLAY
    while client.perform(Read(KEY.id)) is not None:
        assert time.monotonic() < began + TIME_LIMIT
        time.sleep(0.05)
    assert time.monotonic() - began >= 1.5
    again = client.perform(claim(KEY, B))
    assert (again.verdict, again.attempt) == (Verdict.WON, 1)
    assert again.fence > first.fence
