"""Redis Streams (and Valkey): a consumer group, read by XREADGROUP.

    redis://host:6379/0?stream=orders&group=billing&consumer=billing-1

``ack_wait=``  A message that is pending for this long, and not extended, goes to another consumer
               (XAUTOCLAIM). Use the same value for all consumers of a group. 60 s by default.
``consumer=``  The name of this consumer. After a restart under the same name its own pending messages
               come first. By default each process has a new name, and its messages come back after
               `ack_wait`. Two live consumers must not have the same name.
``from=``      Where a new group starts: ``0`` (the oldest message, the default) or ``$`` (only new ones).
               A group that disappears while we consume (FLUSHALL, XGROUP DESTROY) starts at 0 again.

An entry of our outbox has the fields ``id``, ``key``, ``topic``, ``headers`` and ``body``. Any other
entry becomes a JSON object of its fields, as text; bytes that are not UTF-8 become ``{"base64": "…"}``.
It has no id: its position, the stream and the entry's id, is its key, unless you give ``key=``.

A pending entry belongs to one consumer. Acknowledging, extending and giving back check that it is
still ours, in one script. So a consumer that was too slow does not settle another one's delivery.

Giving back moves the entry to the consumer `RETURNED`, with an idle time such that it becomes claimable
after the delay. The next XAUTOCLAIM of any consumer, at most a second later, gets it. A delay is cut
to `ack_wait`. An entry that was trimmed or deleted while it was pending is lost; a warning says so.
"""

from __future__ import annotations

import itertools
import logging
import os
import socket
import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Final, NamedTuple, Self, TypeAlias

from ..._core.consuming.message import Message, Received
from ..._core.consuming.source import ConsumerSettings, Member, SourceProblem, SourceStatus
from ..._values.drivers import require
from ..._values.settings import expect
from ...errors import BrokerUnavailableError, ConfigurationError
from ...outbox.publishers._urls import redis_url
from ._connection import ConnectionSource, named, with_query
from ._redis_entries import ACKNOWLEDGE, EXTEND, FORGET, RETURN, RETURNED, message_of

__all__ = ["RedisStreamSource"]

OPTIONS: Final = {
    "stream": "", "group": "", "consumer": "", "from": "0", "ack_wait": 60.0, "timeout": 5.0,
}  # fmt: skip

MOST: Final = 100_000
"""Redis has no limit for pending messages; this one keeps our memory bounded."""

PAGE: Final = 1000
LOOK_EVERY: Final = 1.0
"""Seconds between two looks at what others left pending."""

FORGET_AFTER: Final = 3600
"""Seconds after which a consumer that has nothing pending and does not read is removed."""

_log = logging.getLogger("twicesafe")

Entry: TypeAlias = tuple[bytes, dict[bytes, bytes] | None, int]
"""Its id, its fields (None: it was deleted), and how often it was delivered."""


class Receipt(NamedTuple):
    entry: bytes
    delivery: int
    """Tells two deliveries of an entry to this consumer apart."""


class RedisStreamSource(ConnectionSource):
    """Async, with redis-py."""

    broker: ClassVar[str] = "Redis"
    can_delay = True
    most_held = MOST

    def __init__(
        self,
        url: str,
        *,
        stream: str,
        group: str,
        consumer: str = "",
        start: str = "0",
        ack_wait: float = 60.0,
        timeout: float = 5.0,
    ) -> None:
        super().__init__(timeout)
        self.name, self.ack_wait = group, ack_wait
        self.dead_url = with_query(url, stream=f"{stream}.dead")
        self._url, self._stream, self._group, self._start = url, stream, group, start
        self._consumer = consumer or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._deliveries = itertools.count(1)
        self._held: dict[bytes, int] = {}
        """By entry: the delivery whose receipt is valid."""
        self._unsure = True
        """Entries may be pending with us that we do not know: from an earlier process, or from a lost reply."""
        self._cursor, self._looked = b"0-0", float("-inf")
        self._makes_stream = True

    @classmethod
    def open(cls, url: str) -> Self:
        require("redis")
        theirs, options = redis_url(url, OPTIONS)
        named(options, "stream", "group")
        start = options.pop("from")
        expect(
            start in ("0", "$"), "option from", start, "use 0 (the oldest message) or $ (new ones)"
        )
        return cls(theirs, start=start, **options)

    def hold_many(self) -> None:
        """For the commands on dead letters: a missing stream is an error, and is not created."""
        self._makes_stream = False

    # -- connection -------------------------------------------------------------------------------

    async def _connect(self) -> None:
        import redis

        client = self._connection = self._client()
        try:
            await client.xgroup_create(
                self._stream, self._group, self._start, mkstream=self._makes_stream
            )
        except redis.ResponseError as error:
            if "requires the key to exist" in str(error):
                raise self._missing() from error
            if "BUSYGROUP" not in str(error):
                raise
        self._start = "0"
        self._unsure = True
        await self._run(client, FORGET, self._group, "", FORGET_AFTER * 1000)

    def _client(self) -> Any:
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        return Redis.from_url(
            self._url,
            socket_timeout=self._timeout,
            socket_connect_timeout=self._timeout,
            retry=Retry(NoBackoff(), 0),  # a repeated XREADGROUP would hide that a reply was lost
        )

    def _is_open(self) -> bool:
        return True  # redis-py replaces its connections; after an error we drop them all

    def _lost(self) -> tuple[type[Exception], ...]:
        import redis

        return (redis.RedisError,)

    async def _disconnect(self, connection: Any) -> None:
        await connection.aclose()

    async def close(self) -> None:
        """Also remove this consumer from the group, if nothing is pending with it."""
        self._enter_loop()
        if self._connection is not None:
            try:
                async with self._reached("close") as client:
                    await self._run(
                        client, FORGET, self._group, self._consumer, FORGET_AFTER * 1000
                    )
            except BrokerUnavailableError:
                _log.debug("the consumer %s stays in its group: Redis is away", self._consumer)
        await super().close()

    async def _run(self, client: Any, script: str, *arguments: Any) -> None:
        await client.eval(script, 1, self._stream, *arguments)

    # -- fetching ---------------------------------------------------------------------------------

    async def fetch(self, most: int, seconds: float) -> list[Received]:
        until = time.monotonic() + seconds
        while True:
            async with self._reached("fetch") as client:
                left = max(0.0, until - time.monotonic())
                found = await self._look(client, most, min(left, self._timeout / 2, LOOK_EVERY))
            if found or time.monotonic() >= until:
                return found

    async def peek(self, most: int) -> list[Message] | None:
        """The oldest messages, if the group does not exist yet: `look` must not create it. None: it exists."""
        import redis

        client = self._client()
        found: list[tuple[bytes, dict[bytes, bytes]]] = []
        async with self._looking(client, at_length=True):
            try:
                groups = await client.xinfo_groups(self._stream)
            except redis.ResponseError as error:
                if "no such key" not in str(error):
                    raise
                raise self._missing() from error
            if any(one["name"] == self._group.encode() for one in groups):
                return None
            while self._start != "$" and (room := min(PAGE, most - len(found))) > 0:
                first = f"({found[-1][0].decode()}" if found else "-"
                page = await client.xrange(self._stream, first, count=room)
                found += page
                if len(page) < room:
                    break
        return [message_of(self._stream, id_, fields, 0) for id_, fields in found]

    def _missing(self) -> ConfigurationError:
        return ConfigurationError(
            f"there is no such stream in Redis: {self._stream}; check the name, or wait for the first message, which "
            "creates the stream"
        )

    async def _look(self, client: Any, most: int, seconds: float) -> list[Received]:
        found: list[Entry] = []
        more = False
        if self._unsure:
            found, more = await self._own(client, most)
        self._unsure = True  # until the replies are here: what they contain is pending with us
        if len(found) < most and time.monotonic() - self._looked >= LOOK_EVERY:
            found += await self._left_by_others(client, most - len(found))
        if len(found) < most:
            found += await self._new(client, most - len(found), 0 if found else seconds)
        received = [
            Received(
                message_of(self._stream, id_, fields, deliveries),
                Receipt(id_, next(self._deliveries)),
            )
            for id_, fields, deliveries in found
            if fields is not None
        ]
        await self._bury(client, [id_ for id_, fields, _ in found if fields is None])
        self._held.update((one.receipt.entry, one.receipt.delivery) for one in received)
        self._unsure = more
        return received

    async def _own(self, client: Any, most: int) -> tuple[list[Entry], bool]:
        """What is pending with us and not held, and whether there may be more of it."""
        known = set(self._held)  # before the question: what is settled meanwhile is not ours
        counts: dict[bytes, int] = {}
        start, more = "-", True
        while more and len(counts) <= most:
            page = await client.xpending_range(
                self._stream, self._group, start, "+", PAGE, self._consumer
            )
            for found in page:
                if found["message_id"] not in known:
                    counts[found["message_id"]] = found["times_delivered"] + 1
            more = len(page) == PAGE
            if more:
                start = f"({page[-1]['message_id'].decode()}"
        ids = list(counts)[:most]
        if not ids:
            return [], False
        there = dict(await client.xclaim(self._stream, self._group, self._consumer, 0, ids))
        return [(id_, there.get(id_), counts[id_]) for id_ in ids], more or len(counts) > most

    async def _left_by_others(self, client: Any, most: int) -> list[Entry]:
        """What was pending with a consumer for longer than `ack_wait`: it died, or gave it back."""
        self._cursor, entries, *deleted = await client.xautoclaim(
            self._stream, self._group, self._consumer, round(self.ack_wait * 1000),
            start_id=self._cursor, count=most,
        )  # fmt: skip
        if self._cursor == b"0-0":  # the whole list was seen; else the next fetch continues
            self._looked = time.monotonic()
        pipe = client.pipeline(transaction=False)
        kept = [(id_, fields) for id_, fields in entries if id_ is not None]
        for id_, _ in kept:
            pipe.xpending_range(self._stream, self._group, id_, id_, 1)
        counts = await pipe.execute() if kept else []
        found: list[Entry] = [
            (id_, fields, count[0]["times_delivered"] if count else 2)
            for (id_, fields), count in zip(kept, counts, strict=True)
        ]
        return found + [(id_, None, 0) for ids in deleted for id_ in ids]

    async def _new(self, client: Any, most: int, seconds: float) -> list[Entry]:
        milliseconds = round(seconds * 1000)  # 0 would block forever
        reply = await client.xreadgroup(
            self._group, self._consumer, {self._stream: ">"}, most, milliseconds or None
        )
        streams = reply.values() if isinstance(reply, dict) else (found for _, found in reply)
        return [(id_, fields, 1) for entries in streams for id_, fields in entries]

    async def _bury(self, client: Any, ids: Sequence[bytes]) -> None:
        if ids:
            await client.xack(self._stream, self._group, *ids)
            _log.warning(
                "%d messages of the stream %s were deleted while they were pending in group %s, "
                "and are lost (first: %s): trim the stream less, or run more consumers",
                *(len(ids), self._stream, self._group, ids[0].decode()),
            )

    # -- settling ---------------------------------------------------------------------------------

    async def acknowledge(self, receipts: Sequence[Receipt]) -> None:
        await self._settle("acknowledge", ACKNOWLEDGE, receipts)

    async def give_back(self, receipts: Sequence[Receipt], seconds: float) -> None:
        idle = round(max(0.0, self.ack_wait - seconds) * 1000)
        await self._settle("give back", RETURN, receipts, idle)
        self._looked = float("-inf")  # the next fetch looks for them

    async def extend(self, receipts: Sequence[Receipt]) -> None:
        valid = self._valid(receipts)
        if valid:
            async with self._reached("extend") as client:
                await self._run(client, EXTEND, self._group, self._consumer, 0, *valid)

    async def _settle(
        self, doing: str, script: str, receipts: Sequence[Receipt], idle: int = 0
    ) -> None:
        valid = self._valid(receipts)
        if not valid:
            return
        async with self._reached(doing) as client:
            await self._run(client, script, self._group, self._consumer, idle, *valid)
        for entry in valid:
            self._held.pop(entry, None)

    def _valid(self, receipts: Iterable[Receipt]) -> list[bytes]:
        return [entry for entry, delivery in receipts if self._held.get(entry) == delivery]

    # -- dead letters and settings ----------------------------------------------------------------

    def scope(self, topic: str) -> tuple[str, ...]:
        return (self.name, self._stream)

    def origin(self, topic: str) -> str:
        return topic

    @property
    def place(self) -> str:
        return self._stream

    def replay_url(self, place: str) -> str:
        return with_query(self._url, stream=place)

    def dead_topic(self, topic: str) -> str:
        return topic  # the publisher at `dead_url` writes all topics to one stream

    async def prepare_dead_letters(self) -> None:
        """XADD creates the stream."""

    async def status(self) -> SourceStatus:
        client = self._client()
        async with self._looking(client):
            groups = await client.xinfo_groups(self._stream)
            consumers = await client.xinfo_consumers(self._stream, self._group)
        (group,) = (one for one in groups if one["name"] == self._group.encode())
        members = [
            Member(one["name"].decode(errors="replace"), one["idle"] / 1000, one["pending"])
            for one in consumers
            if one["name"] != RETURNED.encode()
        ]
        return SourceStatus(group.get("lag"), group["pending"], len(members), tuple(members))

    async def check(self, consumer: ConsumerSettings) -> list[SourceProblem]:
        async with self._reached("check") as client:
            memory = await client.info("memory")
        found = []
        if consumer.longest_backoff > self.ack_wait:
            found.append(
                SourceProblem(
                    f"a delay of {consumer.longest_backoff:g} s is cut to ack_wait={self.ack_wait:g}: "
                    "the message comes back earlier than the back-off says",
                    f"set ack_wait={consumer.longest_backoff:g} in the URL, or a shorter back-off",
                )
            )
        policy = memory.get("maxmemory_policy", "noeviction")
        if memory.get("maxmemory") and str(policy).startswith("allkeys"):
            found.append(
                SourceProblem(
                    f"Redis may delete the stream {self._stream} when its memory is full "
                    f"(maxmemory-policy {policy})",
                    "set maxmemory-policy to noeviction, or to a volatile- policy",
                )
            )
        return found
