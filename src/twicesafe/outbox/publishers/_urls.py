"""Publishers by URL: the scheme selects the module, which is imported on first use.

Query parameters configure the publisher; unknown ones are refused by name. Other packages add
schemes through the entry-point group ``twicesafe.publishers`` (``scheme = "module:Class"``, a class
with ``open(url)``).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from ..._core.outbox.publisher import Publisher
from ..._values.settings import expect, refuse_unknown, suggestion
from ...errors import ConfigurationError
from ...stores._certificates import check_certificates
from ...stores._urls import SWITCH, Samples, check_driver_options, expect_once, target_of, typed

__all__ = [
    "AMQP",
    "CHECK_BROKER",
    "SCHEMES",
    "check_kafka",
    "driver_url",
    "kafka_url",
    "open_publisher",
    "redis_url",
    "refused_by_kafka",
    "server_url",
]

CHECK_BROKER: Final = "check that it is up, and the address and login in its URL"
"""What to do next, in the error of a broker that does not answer."""

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
    given = parse_qsl(parts.query, keep_blank_values=True)
    expect_once(given, ours)
    for name, text in given:
        if name not in ours:
            theirs.append((name, text))
            continue
        value = options[name] = typed(text, ours[name], f"option {name}")
        expect(
            type(value) not in (int, float) or value > 0,
            *(f"option {name}", text[:40], f"its default is {ours[name]!r}"),
        )
    query = f"?{urlencode(theirs)}" if theirs else ""
    return f"{scheme or parts.scheme}://{parts.netloc}{parts.path}{query}", options


def server_url(
    url: str, ours: Mapping[str, Any], drivers: Samples = MappingProxyType({}), scheme: str = ""
) -> tuple[str, dict[str, Any]]:
    """`driver_url`, for a driver that ignores options of its URL unless they are in ``drivers``: a
    misspelt one would have no effect. A wrong host or port would look like an outage that never
    ends."""
    theirs, options = driver_url(url, ours, scheme)
    parts = urlsplit(theirs)
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    refuse_unknown(given, (*ours, *drivers), "option of this URL")
    check_driver_options(given.items(), drivers)
    files = [(name, given.get(name, "")) for name in _CERTIFICATES]
    if parts.scheme == "amqp" and any(path for _, path in files):
        raise ConfigurationError("certificates are for TLS: write amqps:// instead of amqp://")
    check_certificates(files, ("cafile",))
    for place in parts.netloc.rpartition("@")[2].split(","):
        try:
            server = urlsplit(f"//{place}")
            is_named = bool(server.hostname) and server.port != 0
        except ValueError:  # the port is no number
            is_named = False
        expect(is_named, "host", place, f"write {parts.scheme}://host:port")
    return theirs, options


_REDIS: Final[Samples] = {
    "socket_timeout": 5.0,
    "socket_connect_timeout": 5.0,
    "socket_read_size": 65536,
    "max_connections": 50,
    "health_check_interval": 30,
    "protocol": ("2", "3"),
    **dict.fromkeys(("socket_keepalive", "retry_on_timeout", "ssl_check_hostname"), SWITCH),
}
"""redis-py reads a word that it does not know as true, in capital letters as in small ones."""

_CERTIFICATES: Final = ("cafile", "certfile", "keyfile")

AMQP: Final[Samples] = {
    "heartbeat": 60,
    "no_verify_ssl": ("0", "1"),
    "interleave": 1,
    "happy_eyeballs_delay": 0.25,
    **dict.fromkeys(("name", "auth", "cafile", "capath", "cadata", "keyfile", "certfile")),
}
"""The options that aio-pika and aiormq read from their URL. aio-pika reads a number that it does
not understand as 0."""


def redis_url(url: str, ours: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """`driver_url`, with an error that redis-py would raise only when it connects."""
    import redis

    theirs, options = driver_url(url.replace("valkey:", "redis:", 1), ours)
    given = parse_qsl(urlsplit(theirs).query, keep_blank_values=True)
    check_driver_options([(name, text.lower()) for name, text in given], _REDIS)
    decoded = dict(given).get("decode_responses", "")  # redis-py takes "false" as true
    expect(not decoded, "option decode_responses", decoded[:40], "remove it: twicesafe reads bytes")
    try:
        redis.ConnectionPool.from_url(theirs).make_connection()
    except (TypeError, ValueError) as error:
        _, unknown, name = str(error).rpartition("unexpected keyword argument ")
        said = f"unknown option {name}" if unknown else str(error)
        meant = f"; {_meant(name, ours)}" if unknown else ""
        raise ConfigurationError(f"redis-py refuses this URL: {said}{meant}") from None
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
        _check_kafka_option(name, value, ours)
    return {**config, "bootstrap.servers": servers}, options


_END: Final = "twicesafe.end"
"""Not a setting of librdkafka, which therefore never makes a client with it."""


def _check_kafka_option(name: str, value: str, ours: Mapping[str, Any]) -> None:
    """Refuse what librdkafka would refuse only when it connects. It may call the setting by another name."""
    from confluent_kafka import KafkaException, Producer

    try:
        Producer({name: value, _END: ""})
    except KafkaException as error:
        text = error.args[0].str().strip()
        if _END in text:
            return
        is_number = text.startswith("Invalid value for")
        remedy = "use a whole number, such as 1000" if is_number else _said(error, ours)
        expect(False, f"option {name}", value[:40], remedy)


def check_kafka(
    client: Callable[[dict[str, Any]], Any], config: Mapping[str, Any], ours: Mapping[str, Any]
) -> None:
    """Refuse what librdkafka refuses, before the first message. Without servers it connects to none."""
    from confluent_kafka import KafkaException

    try:
        client({name: value for name, value in config.items() if name != "bootstrap.servers"})
    except KafkaException as error:
        raise refused_by_kafka(error, ours) from error


def refused_by_kafka(error: Exception, ours: Mapping[str, Any]) -> ConfigurationError:
    return ConfigurationError(_said(error, ours))


def _said(error: Exception, ours: Mapping[str, Any]) -> str:
    said = error.args[0].str().strip()
    _, unknown, name = said.partition("No such configuration property: ")
    meant = f"; {_meant(name, ours)}" if unknown else ""
    return f"librdkafka refused a setting: {said}{meant}"


def _meant(name: str, ours: Mapping[str, Any]) -> str:
    return suggestion(name, ours, f"the options of twicesafe are {', '.join(ours)}")
