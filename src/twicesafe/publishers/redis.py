"""Redis Streams: one XADD per message, a whole batch in one transaction and one trip.

    redis://host:6379/0?stream=orders&maxlen=100000

The stream is the message's topic (``prefix=`` goes in front), or the one that ``stream=`` names. A
consumer finds ``id``, ``key``, ``topic``, ``headers`` (JSON) and ``body``. Streams do not
deduplicate: consumers do, by the id (`Inbox`). With ``maxlen`` Redis trims old entries, read or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Self

import msgspec

from ..core.outbox import Message
from ..core.publishing import Answer
from ..errors import BrokerUnavailableError
from .urls import driver_url

__all__ = ["RedisStreamPublisher"]

OPTIONS: Final = {"stream": "", "prefix": "", "maxlen": "", "batch": 200, "timeout": 5.0}


class RedisStreamPublisher:
    """Blocking, by redis-py."""

    concurrency = 1

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
        import redis

        theirs, options = driver_url(url.replace("valkey:", "redis:", 1), OPTIONS)
        client = redis.Redis.from_url(
            theirs, socket_timeout=options["timeout"], socket_connect_timeout=options["timeout"]
        )
        maxlen = int(options["maxlen"]) if options["maxlen"] else None
        return cls(
            client,
            stream=options["stream"],
            prefix=options["prefix"],
            maxlen=maxlen,
            batch=options["batch"],
        )

    def publish(self, messages: Sequence[Message]) -> list[Answer]:
        import redis

        # All or nothing, so no later message of a key gets in where an earlier one did not.
        pipe = self._client.pipeline(transaction=True)
        for message in messages:
            fields = {
                "id": message.id,
                "topic": message.topic,
                "headers": msgspec.json.encode(message.headers),
                "body": message.body,
            }
            if message.key is not None:
                fields["key"] = message.key
            pipe.xadd(
                self._stream or self._prefix + message.topic,
                fields,
                maxlen=self._maxlen,
                approximate=self._maxlen is not None,
            )
        try:
            replies = pipe.execute(raise_on_error=False)
        except redis.RedisError as error:
            raise BrokerUnavailableError(
                f"Redis took none of {len(messages)} messages: {type(error).__name__}"
            ) from error
        # What is no stream refuses all that is for it; the relay stops those keys there.
        return [reply if isinstance(reply, Exception) else None for reply in replies]

    def close(self) -> None:
        self._client.close()
