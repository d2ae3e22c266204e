"""A number, duration or truth value that is none is refused when the URL is opened, by its name and with an example.

Drivers look at most of their options only when they connect, read a wrong number as 0, or a wrong word as true.
"""

from __future__ import annotations

import pytest

from twicesafe import ConfigurationError
from twicesafe.consumers.sources import open_source
from twicesafe.outbox.publishers._urls import open_publisher
from twicesafe.stores._urls import open_async_store, open_store

PLACE = "127.0.0.1:1"
"""No server is there: an option is refused before anything connects."""

LIBPQ = (
    "pool timeout prepare wake migrate generations connect_timeout keepalives keepalives_idle keepalives_interval"
    " keepalives_count tcp_user_timeout port sslcompression sslsni gssdelegation sslmode target_session_attrs"
)
REDIS = (
    "timeout socket_timeout socket_connect_timeout socket_keepalive retry_on_timeout max_connections"
    " health_check_interval"
)
KAFKA = "linger.ms socket.timeout.ms enable.idempotence session.timeout.ms acks"
AMQP = "timeout heartbeat no_verify_ssl happy_eyeballs_delay"

STORES = {
    "sqlite:///{folder}/keys.db?": "timeout migrate",
    f"postgresql://u:p@{PLACE}/db?": LIBPQ,
    f"postgresql+asyncpg://u:p@{PLACE}/db?": LIBPQ,
    f"mysql://u:p@{PLACE}/db?": "pool timeout migrate",
    f"redis://{PLACE}/0?": "timeout pool wait_replicas wait_timeout wake db verify",
    f"etcd://{PLACE}/prefix?": "timeout",
    f"dynamodb://table?region=eu-west-1&endpoint=http://{PLACE}&": "timeout pool skew migrate",
    f"mongodb://{PLACE}/db?": (
        "timeout pool skew migrate connectTimeoutMS socketTimeoutMS serverSelectionTimeoutMS heartbeatFrequencyMS"
        " maxIdleTimeMS minPoolSize maxConnecting zlibCompressionLevel retryWrites retryReads directConnection tls"
        " tlsInsecure loadBalanced waitQueueTimeoutMS localThresholdMS"
    ),
}
PUBLISHERS = {
    "https://example.com/hook?": "timeout concurrency",
    f"redis://{PLACE}/0?stream=s&": f"{REDIS} batch maxlen",
    f"kafka://{PLACE}?": f"{KAFKA} batch timeout",
    f"nats://{PLACE}?": "timeout batch deduplicate",
    f"amqp://{PLACE}?": f"{AMQP} batch mandatory",
    "sqs://queue?region=eu-west-1&": "timeout deduplicate",
}
SOURCES = {
    f"redis://{PLACE}/0?stream=s&group=g&": f"{REDIS} ack_wait",
    f"kafka://{PLACE}?topics=orders&group=g&": f"{KAFKA} max.poll.interval.ms",
    f"nats://{PLACE}?stream=S&durable=d&": "timeout ack_wait",
    f"amqp://{PLACE}?queue=q&": f"{AMQP} prefetch consumer_timeout",
    "sqs://queue?region=eu-west-1&": "timeout",
}


def _cases(urls: dict[str, str]) -> list[tuple[str, str]]:
    return [(url, name) for url, names in urls.items() for name in names.split()]


def _is_explained(error: ConfigurationError, name: str) -> bool:
    text = str(error)
    example = ("such as", "use true or false", "use one of", "true or false", "units", "1h30m")
    return f"{name}='abc'" in text and any(words in text for words in example)


@pytest.mark.parametrize("url, name", _cases(STORES))
def test_a_store_refuses_it(url: str, name: str, tmp_path: object) -> None:
    for opener in (open_store, open_async_store):
        with pytest.raises(ConfigurationError) as refused:
            opener(f"{url.format(folder=tmp_path)}{name}=abc")
        assert _is_explained(refused.value, name), refused.value


@pytest.mark.parametrize("url, name", _cases(PUBLISHERS))
def test_a_publisher_refuses_it(url: str, name: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        open_publisher(f"{url}{name}=abc")
    assert _is_explained(refused.value, name), refused.value


@pytest.mark.parametrize("url, name", _cases(SOURCES))
def test_a_source_refuses_it(url: str, name: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        open_source(f"{url}{name}=abc")
    assert _is_explained(refused.value, name), refused.value


RIGHT = [
    f"postgresql://u:p@{PLACE}/db?connect_timeout=-1&keepalives=0&port=5432,5433&sslmode=verify-full",
    f"mongodb://{PLACE}/db?connectTimeoutMS=250&retryWrites=true",
]


@pytest.mark.parametrize("url", RIGHT)
def test_right_values_are_left_to_the_driver(url: str) -> None:
    open_async_store(url)


def test_right_values_of_brokers() -> None:
    open_publisher(f"kafka://{PLACE}?linger.ms=5&enable.ssl.certificate.verification=true").close()
    open_publisher(f"redis://{PLACE}/0?socket_timeout=2.5&retry_on_timeout=no&maxlen=1000")
    open_source(f"amqp://{PLACE}?queue=q&heartbeat=30&no_verify_ssl=0&name=worker&timeout=2s")


@pytest.mark.parametrize("text", ["True", "False", "Yes", "NO", "1"])
def test_words_of_redis_may_have_capital_letters(text: str) -> None:
    """Its documentation writes True and False."""
    options = f"socket_keepalive={text}&retry_on_timeout={text}&ssl_check_hostname={text}"
    open_publisher(f"rediss://{PLACE}/0?stream=s&{options}")
    open_source(f"rediss://{PLACE}/0?stream=s&group=g&{options}")


@pytest.mark.parametrize("text", ["true", "false", "0"])
def test_decoded_replies_of_redis_are_refused(text: str) -> None:
    """redis-py takes every text as true: with `false`, too, it would decode the bodies of messages."""
    for opener, url in ((open_publisher, "stream=s"), (open_source, "stream=s&group=g")):
        with pytest.raises(ConfigurationError, match=r"decode_responses=.* remove it"):
            opener(f"redis://{PLACE}/0?{url}&decode_responses={text}")


def test_an_option_that_the_driver_would_ignore_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match="there is no option of this URL 'hearbeat'; did you mean"
    ):
        open_publisher(f"amqp://{PLACE}?hearbeat=30")
    with pytest.raises(
        ConfigurationError, match=r'linger\.m=.*No such configuration property: "linger\.m"'
    ):
        open_source(f"kafka://{PLACE}?topics=orders&group=g&linger.m=5")
