"""A publisher that does not return: its call is given up, and in the end other relays continue.

The relay that hangs has a short limit. The one that continues has the default of five minutes, so a busy machine
does not make it look hung.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.outbox.stage import AsyncBroker, Broker, RelayMode
from tests.polling import until
from twicesafe import BrokerUnavailableError
from twicesafe.events import BrokerFailed, Event
from twicesafe.outbox import Outbox, OutboxRelay

Put = Callable[..., list[str]]

SHORT: dict[str, Any] = {"lease": 0.3, "publish_timeout": 0.01}


class Hanging(Broker):
    """Its calls for these bodies do not return before it is released."""

    def __init__(self, *bodies: str) -> None:
        super().__init__()
        self.hangs = set(bodies)
        self.entered = threading.Event()
        self.go_on = threading.Event()

    def publish(self, messages: Sequence[Any]) -> list[Exception | None]:
        if any(message.body.decode() in self.hangs for message in messages):
            self.entered.set()
            assert self.go_on.wait(240)
        return super().publish(messages)


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    made = Hanging("1")
    yield made
    made.go_on.set()


def test_another_relay_continues_and_the_order_of_a_key_is_kept(
    mode: RelayMode, outbox: Outbox, put: Put, hanging: Hanging
):
    said: list[Event] = []
    hanging.keeps_order = True  # type: ignore[attr-defined]
    put("1", "2", key="k")
    stuck = mode.relay(hanging, observers=[said.append], **SHORT).start()
    assert hanging.entered.wait(120)
    broker = Broker()
    mode.relay(broker).start()
    broker.wait_for(2, 120)
    put("3", key="k")
    broker.wait_for(3, 120)
    assert broker.bodies == ["1", "2", "3"]
    assert any(
        isinstance(event, BrokerFailed) and "returned within 0.01 s" in event.error
        for event in said
    )
    hanging.go_on.set()
    hanging.wait_for(2, 120)
    assert hanging.bodies == ["1", "2"]  # again, under the same ids
    until(lambda: outbox.depth().relays == 2)  # it works again
    stuck.stop()
    put("4", key="k")
    broker.wait_for(4, 120)
    assert broker.bodies == ["1", "2", "3", "4"]
    until(lambda: outbox.depth().pending == 0)


def test_alone_it_publishes_when_its_call_has_returned(
    mode: RelayMode, outbox: Outbox, put: Put, hanging: Hanging
):
    put("1", key="k")
    relay = mode.relay(hanging, **SHORT).start()
    until(lambda: hanging.entered.is_set() and outbox.depth().relays == 0)
    put("2", key="k")
    hanging.go_on.set()
    until(lambda: outbox.depth().pending == 0)
    relay.stop()
    assert list(dict.fromkeys(hanging.bodies)) == ["1", "2"]


def test_one_call_of_several_is_given_up_and_the_others_continue(
    mode: RelayMode, outbox: Outbox, put: Put, hanging: Hanging
):
    said: list[Event] = []
    hanging.batch, hanging.concurrency = 1, 8
    put("1", key="k")
    mode.relay(hanging, observers=[said.append], lease=0.3, publish_timeout=0.5).start()
    assert hanging.entered.wait(120)
    hanging.hangs.clear()
    until(lambda: outbox.depth().pending == 0)  # sent again in another place
    assert hanging.bodies == ["1"]
    put("2", key="k")
    hanging.wait_for(2, 120)
    assert any(
        isinstance(event, BrokerFailed) and "did not return within" in event.error for event in said
    )


def test_an_async_call_is_cancelled_and_sent_again(outbox: Outbox, put: Put, url: str):
    class AsyncHanging(AsyncBroker):
        calls = cancelled = 0

        async def publish(self, messages: Sequence[Any]) -> list[Exception | None]:  # type: ignore[override]
            self.calls += 1
            if self.calls == 1:
                try:
                    await asyncio.Event().wait()
                finally:
                    self.cancelled += 1
            return await super().publish(messages)

    broker = AsyncHanging()
    mode = RelayMode("async", url)
    put("1", "2", key="k")
    try:
        mode.relay(broker, publish_timeout=2).start()
        broker.wait_for(2, 120)
    finally:
        mode.close()
    assert broker.cancelled == 1
    assert list(dict.fromkeys(broker.bodies)) == ["1", "2"]


def test_draining_does_not_wait_for_what_hangs(url: str, put: Put, hanging: Hanging):
    hanging.batch, hanging.concurrency = 1, 2
    put("1", key="k")
    relay = OutboxRelay.open(url, hanging, publish_timeout=0.5)
    try:
        with pytest.raises(BrokerUnavailableError, match=r"did not return within 0\.5 s"):
            relay.drain()
    finally:
        hanging.go_on.set()
        relay.close()


@pytest.mark.parametrize("concurrency", [1, 2])
def test_the_program_ends_although_a_call_hangs(tmp_path: Path, concurrency: int):
    """Python waits for the threads of a pool, which never ended."""
    program = f"""
import sqlite3, threading
from twicesafe import Outbox, OutboxRelay

outbox = Outbox.open("sqlite:///{tmp_path / "shop.db"}")
connection = sqlite3.connect("{tmp_path / "shop.db"}")
with connection:
    outbox.add(connection, topic="t", body="1")
entered = threading.Event()

def hang(message):
    entered.set()
    threading.Event().wait()

relay = OutboxRelay(outbox.store, hang, concurrency={concurrency}).start()
assert entered.wait(60)
try:
    relay.stop(grace=0.01)
except TimeoutError:
    print("it hangs")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, done.stdout) == (0, "it hangs\n"), done.stderr
