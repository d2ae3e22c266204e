"""Every source is whole: it has all that the consumer flow asks for."""

from __future__ import annotations

import importlib
import inspect
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from twicesafe import BrokerUnavailableError, ConfigurationError, Receiver
from twicesafe.consumers import Consumer
from twicesafe.consumers.sources import SCHEMES, Source, open_source
from twicesafe.outbox.publishers import open_publisher

ASKED = {name for name in vars(Source) if not name.startswith("_")} - {"__init__"}


@pytest.mark.parametrize("target", sorted(set(SCHEMES.values())))
def test_a_source_has_every_method(target: str):
    module, _, name = target.partition(":")
    source = getattr(importlib.import_module(module), name)
    text = inspect.getsource(source)
    missing = {one for one in ASKED if not hasattr(source, one) and f"self.{one}" not in text}
    assert missing == set()


@pytest.mark.parametrize(
    "url", ["nats://localhost?stream=S&durable=d", "redis://localhost/0?stream=s&group=g"]
)
@pytest.mark.parametrize("open_url", [open_source, open_publisher])
def test_an_option_that_nothing_reads_is_refused(url: str, open_url: Callable[[str], Any]) -> None:
    """Misspelt, it would have no effect, or fail when the first message comes."""
    if open_url is open_publisher:
        url = url.partition("?")[0] + "?timeout=3"
    with pytest.raises(ConfigurationError, match="'ack_wat'"):
        open_url(f"{url}&ack_wat=5s")


@pytest.mark.parametrize(
    "url, meant",
    [
        ("amqp://h/?queue=q&prefecth=3", "prefetch"),
        ("nats://h?stream=S&durable=d&akc_wait=3", "ack_wait"),
        ("redis://h/0?stream=s&group=g&cosumer=x", "consumer"),
        ("kafka://h?topic=t&group=g", "topics"),
        ("sqs://q?endpint=x", "endpoint"),
    ],
)
def test_a_misspelt_option_is_named_with_what_was_meant(url: str, meant: str) -> None:
    with pytest.raises(ConfigurationError, match=f"did you mean '{meant}'"):
        open_source(url)


@pytest.mark.parametrize(
    "url", ["kafka://h?topics=t&group=g&no.such=1", "kafka://h?topics=t&group=g&isolation.level=x"]
)
def test_what_librdkafka_refuses_is_refused_before_the_first_message(url: str) -> None:
    with pytest.raises(ConfigurationError, match="librdkafka refused"):
        open_source(url)


@pytest.mark.parametrize(
    "url",
    [
        "kafka://h?topics=orders&topics=refunds&group=g",
        "amqp://h/?queue=a&queue=b",
        "nats://h?stream=S&durable=d&durable=d",
        "redis://h/0?stream=s&group=g&stream=t",
        "sqs://q?endpoint=http://a&endpoint=http://b",
    ],
)
def test_an_option_that_is_given_twice_is_refused(url: str) -> None:
    """The last one would win, and messages of the other topic would never come."""
    with pytest.raises(ConfigurationError, match="give it once"):
        open_source(url)


def test_an_option_of_a_store_that_is_given_twice_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="give it once"):
        Receiver.open("sqlite:///keys.db?table=a&table=b")


def test_a_password_that_is_given_twice_is_not_shown() -> None:
    url = "redis+sentinel://h/main?sentinel_password=xyzzy&sentinel_password=xyzzy"
    with pytest.raises(
        ConfigurationError, match=r"option sentinel_password .* give it once"
    ) as caught:
        Receiver.open(url)
    assert "xyzzy" not in str(caught.value)


@pytest.mark.parametrize("option", ["heartbeat=5", "name=billing", "no_verify_ssl=1"])
def test_options_of_the_amqp_driver_are_passed_on(option: str) -> None:
    opened: Any = open_source(f"amqp://h/?queue=q&{option}")
    assert opened._url == f"amqp://h/?{option}"


NOWHERE = ["redis://127.0.0.1:1/0?stream=s&group=g", "amqp://127.0.0.1:1/?queue=q"]


@pytest.mark.parametrize("url", NOWHERE)
def test_a_broker_that_does_not_answer_says_what_to_check(url: str) -> None:
    with (
        Receiver.open("memory://") as receiver,
        Consumer.open(url, receiver=receiver) as consumer,
        pytest.raises(BrokerUnavailableError, match="check that it is up, and the address"),
    ):
        consumer.drain(print, idle=0.1)


@pytest.mark.parametrize("url", NOWHERE)
def test_the_error_of_a_command_is_the_only_output_on_stderr(url: str) -> None:
    """A driver's own log goes where the user sends logs, not between our lines."""
    words = [sys.executable, "-m", "twicesafe", "dead-letters", "list", "--from", url, "--json"]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 3
    assert json.loads(ran.stderr)["error"]["type"] == "BrokerUnavailableError"


@pytest.mark.parametrize("setting", ["key", "recover", "dead_letter"])
def test_a_function_of_another_shape_is_refused_before_the_first_message(setting: str) -> None:
    """Each message would fail, and be recovered or given up by a function that fails, too."""
    with (
        Receiver.open("memory://") as receiver,
        pytest.raises(ConfigurationError, match=rf"^{setting}= is called with \(message"),
    ):
        Consumer.open(NOWHERE[0], receiver=receiver, **{setting: lambda: None})  # type: ignore[arg-type]
