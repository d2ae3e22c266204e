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
from ...stores._urls import target_of, typed

__all__ = [
    "SCHEMES",
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


def redis_url(url: str, ours: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """`driver_url`, with an error that redis-py would raise only when it connects."""
    import redis

    theirs, options = driver_url(url.replace("valkey:", "redis:", 1), ours)
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
    return {**config, "bootstrap.servers": servers}, options
