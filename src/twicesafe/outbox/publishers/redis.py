"""Redis Streams: one XADD per message; the messages of one stream are one transaction.

    redis://host:6379/0?stream=orders&maxlen=100000

The stream is the message's topic, prefixed with ``prefix=``, or the stream named by ``stream=``. An
entry has ``id``, ``key``, ``topic``, ``headers`` (JSON) and ``body``. Streams do not deduplicate;
consumers do, by the id (`Inbox`). With ``maxlen`` Redis trims old entries, read or not.

EXEC is not all or nothing: if one command in it fails, the later ones still run. So a transaction
contains one stream only, where Redis accepts either all or none. That keeps the order of a key,
because the messages of a key in one call have one topic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Self

import msgspec

from ..._core.outbox.publisher import NOT_TRIED, Answer
from ..._core.outbox.requests import Message
from ..._values.drivers import require
from ...errors import BrokerUnavailableError
from ...stores._urls import typed
from ._urls import redis_url

__all__ = ["RedisStreamPublisher"]

OPTIONS: Final = {"stream": "", "prefix": "", "maxlen": "", "batch": 200, "timeout": 5.0}

_AWAY: Final = frozenset(
    {"BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "MOVED", "NOAUTH", "NOREPLICAS",
     "OOM", "READONLY", "TRYAGAIN", "UNBLOCKED", "WRONGPASS"}
)  # fmt: skip
"""Error codes that concern the server, not the message or its stream."""


class RedisStreamPublisher:
    """Blocking, with redis-py."""

    concurrency = 1
    keeps_order = True

    def __init__(
        self,
        client: Any,
        *,
        stream: str = "",
        prefix: str = "",
        maxlen: int | None = None,
        batch: int = 200,
    ) -> None:
        self._client = client
        self._stream, self._prefix, self._maxlen = stream, prefix, maxlen
        self.batch = batch

    @classmethod
    def open(cls, url: str) -> Self:
        require("redis")
        import redis

        theirs, options = redis_url(url, OPTIONS)
        client = redis.Redis.from_url(
            theirs, socket_timeout=options["timeout"], socket_connect_timeout=options["timeout"]
        )
        maxlen = options["maxlen"] and typed(options["maxlen"], 100_000, "option maxlen")
        return cls(
            client,
            stream=options["stream"],
            prefix=options["prefix"],
            maxlen=maxlen or None,
            batch=options["batch"],
        )

    def publish(self, messages: Sequence[Message]) -> list[Answer]:
        answers: list[Answer] = [NOT_TRIED] * len(messages)
        streams: dict[str, list[int]] = {}
        for place, message in enumerate(messages):
            streams.setdefault(self._stream or self._prefix + message.topic, []).append(place)
        for stream, places in streams.items():
            replies = self._add(stream, [messages[place] for place in places])
            for place, reply in zip(places, replies, strict=True):
                refused = isinstance(reply, Exception)
                answers[place] = _meaning(reply, len(places)) if refused else None
        return answers

    def _add(self, stream: str, messages: Sequence[Message]) -> Sequence[Any]:
        """Redis's reply for each message, or an exception."""
        import redis

        pipe = self._client.pipeline(transaction=True)
        for message in messages:
            pipe.xadd(
                stream,
                _fields(message),
                maxlen=self._maxlen,
                approximate=self._maxlen is not None,
            )
        try:
            return pipe.execute(raise_on_error=False)  # type: ignore[no-any-return]
        except redis.RedisError as error:
            return [error] * len(messages)

    def check(self) -> None:
        import redis

        try:
            self._client.ping()
        except redis.RedisError as error:
            raise BrokerUnavailableError(
                f"Redis cannot be used: {type(error).__name__}", blames="none"
            ) from error

    def close(self) -> None:
        self._client.close()


def _fields(message: Message) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "id": message.id,
        "topic": message.topic,
        "headers": msgspec.json.encode(message.headers),
        "body": message.body,
    }
    if message.key is not None:
        fields["key"] = message.key
    return fields


def _meaning(error: Exception, count: int) -> Exception:
    """Is this Redis error a refusal of these messages, or an outage?"""
    import redis

    said = f"Redis accepted none of {count} messages: {type(error).__name__}"
    if isinstance(error, redis.TimeoutError):
        outage = BrokerUnavailableError(said)
    elif isinstance(error, (redis.ConnectionError, redis.AuthenticationError)):
        never = isinstance(error, redis.AuthenticationError) or "onnecting to" in str(error)
        outage = BrokerUnavailableError(said, blames="none" if never else "alone")
    elif _first_word(error) in _AWAY:
        outage = BrokerUnavailableError(said, blames="none")
    else:
        return RuntimeError(f"Redis refused the message: {type(error).__name__}: {_words(error)}")
    outage.__cause__ = error
    return outage


def _words(error: Exception) -> str:
    """Redis's own text, without the command that redis-py may prefix: it contains the message."""
    return str(error).rpartition("caused error: ")[2]


def _first_word(error: Exception) -> str:
    import redis.exceptions as known

    for kind, word in (
        (known.ReadOnlyError, "READONLY"),
        (known.OutOfMemoryError, "OOM"),
        (known.BusyLoadingError, "LOADING"),
        (known.ClusterDownError, "CLUSTERDOWN"),
        (known.MasterDownError, "MASTERDOWN"),
        (known.TryAgainError, "TRYAGAIN"),
    ):
        if isinstance(error, kind):
            return word
    return _words(error).partition(" ")[0]
