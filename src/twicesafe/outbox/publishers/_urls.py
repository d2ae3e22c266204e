"""Publishers by URL: the scheme selects the module, which is imported on first use.

Query parameters configure the publisher; unknown ones are refused by name. Other packages add
schemes through the entry-point group ``twicesafe.publishers`` (``scheme = "module:Class"``, a class
with ``open(url)``).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from ..._core.outbox.publisher import Publisher
from ..._values.settings import expect, refuse_unknown
from ...errors import ConfigurationError
from ...stores._urls import SWITCH, check_driver_options, target_of, typed

__all__ = [
    "SCHEMES",
    "amqp_url",
    "driver_url",
    "kafka_url",
    "open_publisher",
    "redis_url",
    "refuse_others",
]

SCHEMES: Final[dict[str, str]] = {
    "http": "twicesafe.outbox.publishers.webhook:WebhookPublisher",
    "https": "twicesafe.outbox.publishers.webhook:WebhookPublisher",
    "redis": "twicesafe.outbox.publishers.redis:RedisStreamPublisher",
    "rediss": "twicesafe.outbox.publishers.redis:RedisStreamPublisher",
    "valkey": "twicesafe.outbox.publishers.redis:RedisStreamPublisher",
    "nats": "twicesafe.outbox.publishers.nats:JetStreamPublisher",
    "tls+nats": "twicesafe.outbox.publishers.nats:JetStreamPublisher",
    "amqp": "twicesafe.outbox.publishers.rabbitmq:RabbitPublisher",
    "amqps": "twicesafe.outbox.publishers.rabbitmq:RabbitPublisher",
    "kafka": "twicesafe.outbox.publishers.kafka:KafkaPublisher",
    "sqs": "twicesafe.outbox.publishers.sqs:SqsPublisher",
}


def open_publisher(url: str) -> Publisher:
    """Open the publisher at this URL; it connects on first use."""
    module, _, name = target_of(url, SCHEMES, "publisher").partition(":")
    publisher: Publisher = getattr(importlib.import_module(module), name).open(url)
    return publisher


def driver_url(url: str, ours: Mapping[str, Any], scheme: str = "") -> tuple[str, dict[str, Any]]:
    """The URL for the driver, without our options; and our options, typed like their defaults.

    Unknown options stay in the URL for the driver to accept or refuse.
    """
    parts = urlsplit(url)
    options, theirs = dict(ours), []
    for name, text in parse_qsl(parts.query, keep_blank_values=True):
        if name not in ours:
            theirs.append((name, text))
            continue
        value = options[name] = typed(text, ours[name], f"option {name}")
        expect(
            type(value) not in (int, float) or value > 0,
            *(f"option {name}", text[:40], f"its default is {ours[name]!r}"),
        )
    query = urlencode(theirs)
    return urlunsplit((scheme or parts.scheme, parts.netloc, parts.path, query, "")), options


def refuse_others(theirs: str, ours: Mapping[str, Any]) -> None:
    """For a driver that ignores the options of its URL: a misspelt one would have no effect."""
    given = dict(parse_qsl(urlsplit(theirs).query, keep_blank_values=True))
    refuse_unknown(given, ours, "option of this URL")


_REDIS: Final[dict[str, float | tuple[str, ...]]] = {
    "socket_timeout": 5.0,
    "socket_connect_timeout": 5.0,
    "socket_read_size": 65536,
    "max_connections": 50,
    "health_check_interval": 30,
    "protocol": ("2", "3"),
    **dict.fromkeys(("socket_keepalive", "retry_on_timeout", "ssl_check_hostname"), SWITCH),
    "decode_responses": ("false", "no", "0"),
}
"""redis-py reads a word that it does not know as true."""

_AMQP: Final[dict[str, float | tuple[str, ...] | None]] = {
    "heartbeat": 60,
    "no_verify_ssl": ("0", "1"),
    "interleave": 1,
    "happy_eyeballs_delay": 0.25,
    **dict.fromkeys(("name", "auth", "cafile", "capath", "cadata", "keyfile", "certfile")),
}
"""The options of aio-pika. It reads a number that it does not understand as 0."""


def redis_url(url: str, ours: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """`driver_url`, with an error that redis-py would raise only when it connects."""
    import redis

    theirs, options = driver_url(url.replace("valkey:", "redis:", 1), ours)
    check_driver_options(parse_qsl(urlsplit(theirs).query, keep_blank_values=True), _REDIS)
    try:
        redis.ConnectionPool.from_url(theirs).make_connection()
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"redis-py refuses an option of this URL: {error}") from None
    return theirs, options


def kafka_url(
    url: str, ours: Mapping[str, Any], query: str = ""
) -> tuple[dict[str, str], dict[str, Any]]:
    """The settings for librdkafka, and our options. ``query``: what a correct URL has, for the error."""
    servers = urlsplit(url).netloc
    if not servers or "@" in servers:
        raise ConfigurationError(
            f"a Kafka URL is kafka://host:9092,host2:9092?{query}…; credentials go into the query, as "
            "librdkafka names them (sasl.username=…)"
        )
    theirs, options = driver_url(url, ours)
    config = dict(parse_qsl(urlsplit(theirs).query, keep_blank_values=True))
    for name, value in config.items():
        _check_kafka(name, value)
    return {**config, "bootstrap.servers": servers}, options


_END: Final = "twicesafe.end"
"""No setting of librdkafka: with it, a client is never made."""


def _check_kafka(name: str, value: str) -> None:
    """Refuse what librdkafka would refuse only when it connects. It may call the setting by another name."""
    from confluent_kafka import KafkaException, Producer

    try:
        Producer({name: value, _END: ""})
    except KafkaException as error:
        text = error.args[0].str().strip()
        if _END in text:
            return
        is_number = text.startswith("Invalid value for")
        remedy = "use a whole number, such as 1000" if is_number else f"librdkafka says: {text}"
        expect(False, f"option {name}", value[:40], remedy)


def amqp_url(url: str, ours: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """`driver_url`, without what aio-pika would ignore, or read as 0."""
    theirs, options = driver_url(url, ours)
    given = parse_qsl(urlsplit(theirs).query, keep_blank_values=True)
    refuse_unknown(dict(given), (*ours, *_AMQP), "option of this URL")
    check_driver_options(given, _AMQP)
    return theirs, options
