"""Publishers by URL: the scheme chooses the file, imported on first use.

Query parameters configure the publisher; unknown ones are refused by name. Other packages add
schemes through the entry-point group ``twicesafe.publishers`` (``scheme = "module:Class"``, a class
with ``open(url)``).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from ..core.publishing import Publisher
from ..errors import ConfigurationError

__all__ = ["SCHEMES", "driver_url", "open_publisher"]

SCHEMES: Final[dict[str, str]] = {
    "http": "twicesafe.publishers.webhook:WebhookPublisher",
    "https": "twicesafe.publishers.webhook:WebhookPublisher",
    "redis": "twicesafe.publishers.redis:RedisStreamPublisher",
    "rediss": "twicesafe.publishers.redis:RedisStreamPublisher",
    "valkey": "twicesafe.publishers.redis:RedisStreamPublisher",
    "nats": "twicesafe.publishers.nats:JetStreamPublisher",
    "tls+nats": "twicesafe.publishers.nats:JetStreamPublisher",
    "amqp": "twicesafe.publishers.rabbitmq:RabbitPublisher",
    "amqps": "twicesafe.publishers.rabbitmq:RabbitPublisher",
    "kafka": "twicesafe.publishers.kafka:KafkaPublisher",
}


def open_publisher(url: str) -> Publisher:
    """The publisher at this URL; it connects when it is first used."""
    scheme, colon, _ = url.partition(":")
    target = SCHEMES.get(scheme) or _plugin(scheme)
    if not colon or target is None:
        raise ConfigurationError(
            f"no publisher for {scheme[:30]!r}: a publisher URL starts with one of "
            f"{', '.join(f'{name}:' for name in _all_schemes())}"
        )
    module, _, name = target.partition(":")
    publisher: Publisher = getattr(importlib.import_module(module), name).open(url)
    return publisher


def driver_url(url: str, ours: Mapping[str, Any], scheme: str = "") -> tuple[str, dict[str, Any]]:
    """The URL without our options, for the driver; and our options, with the types of their defaults.

    What is not ours stays in the URL: the driver knows it, or refuses it.
    """
    parts = urlsplit(url)
    options, theirs = dict(ours), []
    for name, text in parse_qsl(parts.query, keep_blank_values=True):
        if name not in ours:
            theirs.append((name, text))
            continue
        try:
            options[name] = _typed(text, ours[name])
        except (ValueError, KeyError):
            raise ConfigurationError(
                f"option {name}={text[:40]!r} makes no sense: its default is {ours[name]!r}"
            ) from None
    query = urlencode(theirs)
    return urlunsplit((scheme or parts.scheme, parts.netloc, parts.path, query, "")), options


def _typed(text: str, default: Any) -> Any:
    if isinstance(default, bool):
        return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[
            text.lower()
        ]
    if isinstance(default, (int, float)):
        number = type(default)(text)
        if number <= 0:
            raise ValueError(text)
        return number
    return text


def _plugin(scheme: str) -> str | None:
    from importlib.metadata import entry_points

    for point in entry_points(group="twicesafe.publishers"):
        if point.name == scheme:
            return point.value
    return None


def _all_schemes() -> Iterable[str]:
    from importlib.metadata import entry_points

    return [*SCHEMES, *(point.name for point in entry_points(group="twicesafe.publishers"))]
