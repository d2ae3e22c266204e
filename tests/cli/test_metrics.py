"""`--metrics` of the three commands that run long, as processes: what a scrape finds there, and how it ends."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.cli.line import Line, held
from tests.cli.test_outbox import park, put
from tests.polling import until
from tests.servers import free_port
from twicesafe import Key, Receiver
from twicesafe.observers._alerts import ALERTS, metrics_of

SHOP = """
from prometheus_client import CollectorRegistry
from twicesafe import {kind}
from twicesafe.observers import PrometheusObserver

receiver = {kind}.open("{url}", observers={observers})
other = receiver.options(scope=("other",))

@receiver.durable(key="order", scope=("shop",), name="checkout")
{defined} checkout(steps, order: str) -> str:
    {awaited}other.process(order, pay)
    return order

{defined} pay() -> str:
    return "paid"

{defined} charge(message):
    if message.id == "bad":
        raise ValueError("no such customer")
"""

OF_THE_OUTBOX = {"TwicesafeRelayBehind", "TwicesafeLanesParked"}
OF_A_RELAY = {*OF_THE_OUTBOX, "TwicesafeStoreFailing"}
OF_A_RECEIVER = {alert.name for alert in ALERTS} - OF_THE_OUTBOX

_numbers = itertools.count(1)


def write_module(line: Line, kind: str, observers: str = "[]") -> str:
    is_async = kind.startswith("Async")
    name = f"metered_{next(_numbers)}_{os.getpid()}"
    text = SHOP.format(
        kind=kind,
        url=line.url,
        observers=observers,
        defined="async def" if is_async else "def",
        awaited="await " if is_async else "",
    )
    Path(f"{name}.py").write_text(text)
    return name


class Running:
    """A command with `--metrics`, and its page."""

    def __init__(self, words: tuple[str, ...]) -> None:
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        command = [sys.executable, "-m", "twicesafe", *words, "--metrics", self.address]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{self.address}{path}", timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            assert self.process.poll() is None, self.process.communicate()[0]
            return 0, ""

    def samples(self) -> dict[str, dict[str, float]]:
        """By name of the sample, then by the value of its only label."""
        found: dict[str, dict[str, float]] = {}
        for family in text_string_to_metric_families(self.get("/metrics")[1]):
            for sample in family.samples:
                label = ",".join(sample.labels.values())
                found.setdefault(sample.name, {})[label] = sample.value
        return found

    def shows(self, name: str, value: float, label: str = "") -> bool:
        return self.samples().get(f"twicesafe_{name}", {}).get(label) == value

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        out, _ = self.process.communicate(timeout=120)
        assert self.process.returncode == 0, out
        with (
            pytest.raises(ConnectionRefusedError),
            socket.create_connection(("127.0.0.1", self.port)),
        ):
            pass


@contextmanager
def running(*words: str) -> Iterator[Running]:
    found = Running(words)
    try:
        yield found
    finally:
        found.process.kill()
        found.process.communicate()


def has_what_they_look_at(found: Running, alerts: set[str]) -> None:
    samples = found.samples()
    for alert in ALERTS:
        if alert.name in alerts:
            for row in metrics_of(alert):
                first = f"{row.full_name}_bucket" if row.kind == "histogram" else row.full_name
                assert first in samples, (alert.name, first)


def test_a_relay_shows_that_it_is_behind_and_which_lanes_are_parked(line: Line) -> None:
    put(line, "bad", key="k")
    park(line)
    put(line, "later", key="other")
    with running("relay", "--to", "redis://127.0.0.1:1/0", "--store", line.url) as relay:
        until(lambda: relay.shows("outbox_parked_lanes", 1))
        until(lambda: relay.samples()["twicesafe_broker_failures_total"][""] >= 1)
        assert relay.shows("outbox_pending_messages", 1)
        assert relay.samples()["twicesafe_outbox_lag_seconds"][""] > 0
        has_what_they_look_at(relay, OF_A_RELAY)
        assert relay.get("/ready")[0] == 404, "there is no receiver"
        relay.end()


@pytest.mark.parametrize("kind", ["Receiver", "AsyncReceiver"])
def test_a_consumer_shows_dead_letters_and_the_records(
    line: Line, receiver: Receiver, valkey: Any, kind: str
) -> None:
    held(receiver, Key("order-1"))
    name = f"metered{next(_numbers)}_{os.getpid()}"
    Path("twicesafe.toml").write_text("[policy]\nmax_attempts = 1\n")
    words = ("consume", f"{write_module(line, kind)}:charge", "--store", line.url)
    url = f"redis://127.0.0.1:{valkey.port}/0?stream={name}&group=billing"
    for id_ in ("a", "a", "bad"):
        fields = {"id": id_, "topic": "orders", "headers": "{}", "body": "{}"}
        valkey.client().xadd(name, fields)
    with running(*words, "--from", url) as consumer:
        until(lambda: consumer.shows("dead_letters_total", 1))
        until(lambda: consumer.shows("records", 1, "held"))
        until(lambda: consumer.shows("deliveries_total", 1, "replayed"))
        has_what_they_look_at(consumer, OF_A_RECEIVER)
        assert consumer.get("/ready")[0] == 200
        assert '"status": "' in consumer.get("/health")[1]
        consumer.end()


@pytest.mark.parametrize("kind", ["Receiver", "AsyncReceiver"])
@pytest.mark.parametrize(
    "observers",
    ["[]", "[PrometheusObserver()]", "[PrometheusObserver(CollectorRegistry())]"],
    ids=["none", "default registry", "own registry"],
)
def test_a_completer_counts_once_whatever_its_receiver_has(
    line: Line, receiver: Receiver, kind: str, observers: str
) -> None:
    @receiver.durable(key="order", scope=("shop",), name="checkout")
    def checkout(steps: object, order: str) -> str:
        raise AssertionError

    held(receiver, Key("order-1"))
    checkout.submit("order-2")
    module = write_module(line, kind, observers)
    with running("complete", f"{module}:receiver", "--every", "20ms") as completer:
        until(lambda: completer.shows("handler_seconds_count", 2))  # the run, and what it called
        assert completer.shows("records", 1, "held")
        has_what_they_look_at(completer, OF_A_RECEIVER)
        assert completer.get("/ready")[0] == 200
        assert '"status": "' in completer.get("/health")[1]
        completer.end()


COMMANDS = {
    "relay": ("relay", "--to", "redis://127.0.0.1:1/0", "--once"),
    "consume": ("consume", "{}:charge", "--from", "redis://127.0.0.1:1/0?stream=a&group=b"),
    "complete": ("complete", "{}:receiver", "--once"),
}


def wrong(line: Line, command: str, address: str) -> str:
    words = [word.format(write_module(line, "Receiver")) for word in COMMANDS[command]]
    ran = line(*words, "--metrics", address, store=command != "complete")
    assert ran.status == 2, ran
    return " ".join(ran.err.split())


@pytest.mark.parametrize("command", COMMANDS)
def test_an_address_that_cannot_be_used_ends_it_before_it_begins(
    line: Line, receiver: Receiver, command: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"cannot listen on 127.0.0.1:{port}" in wrong(line, command, f"127.0.0.1:{port}")
    assert "metrics='9100' is not valid: use host:port" in wrong(line, command, "9100")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_missing_extra_is_named(
    line: Line, receiver: Receiver, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "prometheus_client"
    monkeypatch.setitem(sys.modules, module, None)
    address = f"127.0.0.1:{free_port()}"
    Path("plain.py").write_text(
        f'from twicesafe import Receiver\nreceiver = Receiver.open("{line.url}")\n'
        '@receiver.durable(key="order")\ndef checkout(steps, order): ...\ndef charge(message): ...\n'
    )
    monkeypatch.setattr(f"{__name__}.write_module", lambda *_: "plain")
    try:
        assert "pip install 'twicesafe[prometheus]'" in wrong(line, command, address)
    finally:
        sys.modules.pop("plain", None)


def test_the_address_may_be_a_setting(line: Line, receiver: Receiver) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        module = write_module(line, "Receiver")
        Path("twicesafe.toml").write_text(f'[complete]\nmetrics = "127.0.0.1:{port}"\n')
        ran = line("complete", f"{module}:receiver", "--once", store=False)
    assert (ran.status, f"127.0.0.1:{port}" in ran.err) == (2, True)
