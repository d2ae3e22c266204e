"""NATS JetStream: a durable pull consumer with explicit acknowledgement.

    nats://host:4222?stream=ORDERS&durable=billing&filter=orders.>

A missing durable is created, with ``ack_wait=`` (30 s by default), ``filter=`` and ``from=``: ``all``, the
default, or ``new``. An existing one is used as it is. A durable that disappears while we consume
is created again from the beginning of the stream. A missing stream is an outage until you create it.

`ack_wait` is that of the durable, as the server says once we are connected. It begins when the
server sends a message. We do not see that moment, so we count from the moment at which we asked, and
ask for at most a quarter of the ack-wait.

JetStream accepts an acknowledgement by the message's place in the stream, whichever delivery it belongs
to (nats-server issue 4786). An acknowledgement that comes too late would count for the delivery to
another consumer. So a receipt is void when nine tenths of its ack-wait have passed without an extension,
and when its durable was created again.

The key is the header ``Twicesafe-Key``, the id is ``Nats-Msg-Id``, the topic is the subject. The position is
the place in the stream and the time at which the stream got the message.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import re
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar, Final, NamedTuple, Self

import msgspec

from ..._core.consuming.message import Message, Received
from ..._core.consuming.source import ConsumerSettings, SourceProblem, SourceStatus
from ..._values.drivers import require
from ..._values.settings import expect
from ...errors import BrokerUnavailableError, ConfigurationError
from ...outbox.publishers._nats_client import nats_client
from ...outbox.publishers._urls import server_url
from ._connection import ConnectionSource, named, with_query
from ._jetstream import Confirmation, PullReplies, message_of, stored_message_of

__all__ = ["JetStreamSource"]

OPTIONS: Final = {
    "stream": "", "durable": "", "filter": "", "from": "all", "ack_wait": 30.0, "timeout": 5.0,
}  # fmt: skip

MOST: Final = 100_000
"""Messages that we hold if the durable has no limit."""

ASKING: Final = 0.25
"""Part of the ack-wait for which one request may wait for messages."""

SHORTEST: Final = 0.05
"""Seconds that a request waits at least."""

_NAME: Final = re.compile(r"[^\s.*>/\\]+")
"""What JetStream takes as the name of a stream or a durable."""

USABLE: Final = 0.9
"""Part of the ack-wait after which a receipt is void: the rest is for the way to the server."""


class Receipt(NamedTuple):
    subject: str
    """Where the delivery is settled. It contains the place in the stream and the number of deliveries."""
    delivery: int
    """A durable that is created again uses the same subjects."""


class JetStreamSource(ConnectionSource):
    """Async, with nats-py."""

    broker: ClassVar[str] = "NATS"
    can_delay = True

    def __init__(
        self,
        url: str,
        *,
        stream: str,
        durable: str,
        filter: str = "",  # noqa: A002 - as JetStream calls it
        start: str = "all",
        ack_wait: float = 30.0,
        timeout: float = 5.0,
    ) -> None:
        super().__init__(timeout)
        self.name, self.ack_wait, self.most_held = durable, ack_wait, MOST
        self._most_asked, self._longest_asked = MOST, math.inf
        """Messages and seconds of one request: the durable refuses to be asked for more."""
        again = url.replace("tls:", "tls+nats:", 1) if url.startswith("tls:") else url
        self.dead_url = with_query(again, deduplicate="false")
        self._url, self._stream, self._durable = url, stream, durable
        self._filter, self._start, self._ack_wait = filter, start, ack_wait
        self._most_pending: int | None = None
        self._created: Any = None
        """When the durable was created: another time is another durable."""
        self._inbox: Any = None
        """The subscription that gets what we ask for."""
        self._request: PullReplies | None = None
        self._confirmed_at: Any = None
        """The subscription that gets the confirmations of acknowledgements."""
        self._confirmation: Confirmation | None = None
        self._deliveries = itertools.count(1)
        self._valid_until: dict[Receipt, float] = {}

    @classmethod
    def open(cls, url: str) -> Self:
        require("nats")
        scheme = "tls" if url.startswith("tls") else "nats"
        theirs, options = server_url(url, OPTIONS, scheme=scheme)
        named(options, "stream", "durable")
        start = options.pop("from")
        expect(start in ("all", "new"), "option from", start, "use all or new")
        for name in ("stream", "durable"):
            given, remedy = options[name], "a name has no spaces, dots, slashes, * or >"
            expect(_NAME.fullmatch(given), f"option {name}", given, remedy)
        return cls(theirs, start=start, **options)

    def hold_many(self) -> None:
        """For the commands on dead letters, which must see all messages: a durable that is created
        now has no limit.
        """
        self._most_pending = -1

    # -- connection -------------------------------------------------------------------------------

    async def _connect(self) -> None:
        client = self._connection = nats_client()
        await self._open(client, closed_cb=self._hung_up)
        durable = await self._durable_of(client.jetstream(timeout=self._timeout))
        if durable.created != self._created:
            self._created = durable.created
            self._valid_until.clear()
        config, self._start = durable.config, "all"
        self.ack_wait = min([config.ack_wait, *(config.backoff or ())])
        self.most_held = config.max_ack_pending if config.max_ack_pending > 0 else MOST
        self._most_asked, self._longest_asked = await self._limits_of_requests(client)
        self._inbox = self._confirmed_at = None

    async def _open(self, client: Any, **callbacks: Any) -> None:
        await client.connect(
            self._url,
            allow_reconnect=False,
            max_reconnect_attempts=1,
            error_cb=_quiet,
            **callbacks,
        )

    async def peek(self, most: int) -> list[Message] | None:
        """The oldest messages, if the durable consumer does not exist yet: `look` must not create it.

        None: it exists; or a message has no id, so its position must be exactly that of a delivery.
        """
        from nats.js.errors import NotFoundError

        client, found = nats_client(), list[Message]()
        async with self._looking(client, at_length=True):
            await self._open(client)
            jetstream = client.jetstream(timeout=self._timeout)
            await self._check_stream(jetstream)
            with contextlib.suppress(NotFoundError):
                await jetstream.consumer_info(self._stream, self._durable)
                return None
            place = 1
            with contextlib.suppress(NotFoundError):  # there are no more
                while len(found) < most and self._start == "all":
                    subject = self._filter or ">"
                    one: Any = await jetstream.get_msg(self._stream, place, subject, next=True)
                    found.append(stored_message_of(self._stream, one))
                    place = one.seq + 1
        return None if any(message.id is None for message in found) else found

    async def _check_stream(self, jetstream: Any) -> None:
        from nats.js.errors import NotFoundError

        try:
            await jetstream.stream_info(self._stream)
        except NotFoundError as error:
            raise BrokerUnavailableError(
                f"there is no such JetStream stream: {self._stream}; create it", blames="none"
            ) from error

    async def _durable_of(self, jetstream: Any) -> Any:
        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
        from nats.js.errors import NotFoundError

        await self._check_stream(jetstream)
        try:
            found = await jetstream.consumer_info(self._stream, self._durable)
        except NotFoundError:
            found = await jetstream.add_consumer(
                self._stream,
                ConsumerConfig(
                    durable_name=self._durable,
                    deliver_policy=DeliverPolicy(self._start),
                    ack_policy=AckPolicy.EXPLICIT,
                    ack_wait=self._ack_wait,
                    filter_subject=self._filter or None,
                    max_ack_pending=self._most_pending,
                ),
            )
        if found.config.deliver_subject or found.config.ack_policy != AckPolicy.EXPLICIT:
            kind = "push" if found.config.deliver_subject else f"ack {found.config.ack_policy}"
            raise ConfigurationError(
                f"the durable {self._durable} cannot be used ({kind}): use a pull consumer with "
                "explicit acknowledgement, or another durable="
            )
        return found

    async def _limits_of_requests(self, client: Any) -> tuple[int, float]:
        """Messages and seconds; nats-py does not tell them."""
        subject = f"$JS.API.CONSUMER.INFO.{self._stream}.{self._durable}"
        reply = await client.request(subject, timeout=self._timeout)
        config = msgspec.json.decode(reply.data).get("config") or {}
        return config.get("max_batch") or MOST, (config.get("max_expires") or math.inf) / 1e9

    def _is_open(self) -> bool:
        return bool(self._connection.is_connected)

    def _lost(self) -> tuple[type[Exception], ...]:
        import nats.errors

        return (nats.errors.Error,)

    async def _disconnect(self, connection: Any) -> None:
        await connection.close()

    async def _hung_up(self) -> None:
        for waiting in (self._request, self._confirmation):
            if waiting is not None:
                waiting.fail(ConnectionError("the connection was closed"))

    # -- fetching ---------------------------------------------------------------------------------

    async def fetch(self, most: int, seconds: float) -> list[Received]:
        until = time.monotonic() + seconds
        while True:
            async with self._reached("fetch") as client:
                left = max(until - time.monotonic(), SHORTEST)
                longest = min(self.ack_wait * ASKING, self._longest_asked)
                found = await self._ask(client, min(most, self._most_asked), min(left, longest))
            if found or time.monotonic() >= until:
                return found

    async def _ask(self, client: Any, most: int, seconds: float) -> list[Received]:
        """One request: what is there now, or else the first that comes within `seconds`.

        The answer is messages, and a status if they are fewer than `most`. Without ``expires`` there
        would be no answer while the durable has as many unsettled messages as it allows.
        """
        if self._inbox is None:
            self._inbox = await client.subscribe(client.new_inbox(), cb=self._arrived)
        request = self._request = PullReplies(most)
        asked_at = time.monotonic()
        try:
            await client.publish(
                f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._durable}",
                msgspec.json.encode(
                    {"batch": most, "no_wait": True, "expires": round(seconds * 1e9)}
                ),
                self._inbox.subject,
            )
            async with asyncio.timeout(seconds + self._timeout):
                await request.done
        except BaseException:
            await self._forget(client, request)
            raise
        finally:
            self._request = None
        valid_until = asked_at + self.ack_wait * USABLE
        received = [
            Received(message_of(message), Receipt(message.reply, next(self._deliveries)))
            for message in request.messages
        ]
        self._valid_until |= {one.receipt: valid_until for one in received}
        return received

    async def _arrived(self, message: Any) -> None:
        if self._request is not None:
            self._request.take(message)

    async def _forget(self, client: Any, request: PullReplies) -> None:
        """Give back what came. There is no subscription for later messages."""
        inbox, self._inbox = self._inbox, None
        with contextlib.suppress(Exception):  # the connection may be gone
            await inbox.unsubscribe()
            for message in request.messages:
                await client.publish(message.reply, b"-NAK")

    # -- settling ---------------------------------------------------------------------------------

    async def acknowledge(self, receipts: Sequence[Receipt]) -> None:
        """The server confirms the last one; it handles those of one connection in order."""
        valid = self._valid(receipts)
        if not valid:
            return
        async with self._reached("acknowledge") as client:
            valid = self._valid(valid)  # connecting may have taken long, or found another durable
            if self._confirmed_at is None:
                place = f"{client.new_inbox()}.*"
                self._confirmed_at = await client.subscribe(place, cb=self._confirmed)
            place = self._confirmed_at.subject.removesuffix("*")
            waiting = self._confirmation = Confirmation(f"{place}{next(self._deliveries)}")
            try:
                for receipt in valid[:-1]:
                    await client.publish(receipt.subject, b"+ACK")
                for receipt in valid[-1:]:  # none is left if connecting took too long
                    await client.publish(receipt.subject, b"+ACK", waiting.subject)
                    async with asyncio.timeout(self._timeout):
                        await waiting.done
            finally:
                self._confirmation = None
            for receipt in valid:
                self._valid_until.pop(receipt, None)

    async def _confirmed(self, message: Any) -> None:
        if self._confirmation is not None:
            self._confirmation.take(message)

    async def give_back(self, receipts: Sequence[Receipt], seconds: float) -> None:
        delay = round(seconds * 1e9)
        await self._tell("give back", b'-NAK {"delay": %d}' % delay if delay else b"-NAK", receipts)
        for receipt in receipts:
            self._valid_until.pop(receipt, None)

    async def extend(self, receipts: Sequence[Receipt]) -> None:
        now = time.monotonic()
        for receipt in await self._tell("extend", b"+WPI", receipts):
            self._valid_until[receipt] = now + self.ack_wait * USABLE

    async def _tell(self, doing: str, words: bytes, receipts: Sequence[Receipt]) -> list[Receipt]:
        """Say this of all valid receipts, and wait until the server has read it."""
        if not self._valid(receipts):
            return []
        async with self._reached(doing) as client:
            valid = self._valid(receipts)
            for receipt in valid:
                await client.publish(receipt.subject, words)
            await client.flush(self._timeout)
        return valid

    def _valid(self, receipts: Sequence[Receipt]) -> list[Receipt]:
        now, valid = time.monotonic(), []
        for receipt in receipts:
            until = self._valid_until.get(receipt)
            if until is not None and now < until:
                valid.append(receipt)
            elif until is not None:
                del self._valid_until[receipt]
        return valid

    # -- dead letters and settings ----------------------------------------------------------------

    def scope(self, topic: str) -> tuple[str, ...]:
        return (self.name, self._stream)

    def origin(self, topic: str) -> str:
        return topic

    place = ""

    def replay_url(self, place: str) -> str:
        return self.dead_url

    def dead_topic(self, topic: str) -> str:
        return f"dead.{self._stream}.{topic}"

    async def prepare_dead_letters(self) -> None:
        """Create the stream ``…_DEAD``, if there is none."""
        from nats.js.api import StreamConfig
        from nats.js.errors import NotFoundError

        name = f"{self._stream}_DEAD"
        async with self._reached("prepare dead letters") as client:
            jetstream = client.jetstream(timeout=self._timeout)
            try:
                await jetstream.stream_info(name)
            except NotFoundError:
                subjects = [f"dead.{self._stream}.>"]
                await jetstream.add_stream(StreamConfig(name=name, subjects=subjects))

    async def status(self) -> SourceStatus:
        """JetStream knows the durable, not the processes that pull from it."""
        client = nats_client()
        async with self._looking(client):
            await self._open(client)
            jetstream = client.jetstream(timeout=self._timeout)
            found = await jetstream.consumer_info(self._stream, self._durable)
        active = getattr(found.delivered, "last_active", None)
        since = None if active is None else (datetime.now(UTC) - active).total_seconds()
        return SourceStatus(found.num_pending, found.num_ack_pending, active=since)

    async def check(self, consumer: ConsumerSettings) -> list[SourceProblem]:
        async with self._reached("check") as client:
            jetstream = client.jetstream(timeout=self._timeout)
            durable = (await jetstream.consumer_info(self._stream, self._durable)).config
            stream = (await jetstream.stream_info(self._stream)).config
        return list(_problems(consumer, self.ack_wait, durable, stream, self._most_asked))


def _problems(
    consumer: ConsumerSettings, ack_wait: float, durable: Any, stream: Any, most_asked: int
) -> Iterator[SourceProblem]:
    name, window = durable.durable_name, stream.duplicate_window or 0
    if ack_wait > consumer.lease:
        yield SourceProblem(
            f"the messages of a consumer that died wait for the ack-wait of {name}, {ack_wait:g} s, "
            f"although its lease ends after {consumer.lease:g} s",
            f"set ack_wait to {consumer.lease:g} s or less: it is extended while a handler runs",
        )
    if durable.max_deliver > 0:
        yield SourceProblem(
            f"JetStream delivers a message of {name} at most {durable.max_deliver} times, crashes and "
            f"delays included, while we try it {consumer.max_attempts} times: after that it is neither "
            "handled nor sent to the dead letters",
            "set max_deliver to -1: twicesafe counts the attempts",
        )
    if 0 < durable.max_ack_pending < consumer.batch + consumer.concurrency:
        yield SourceProblem(
            f"all consumers of {name} together may hold {durable.max_ack_pending} messages, fewer than "
            f"batch={consumer.batch} and concurrency={consumer.concurrency} of one",
            "raise max_ack_pending, or lower batch= and concurrency=",
        )
    if most_asked < consumer.batch:
        yield SourceProblem(
            f"one request to {name} gets at most {most_asked} messages, fewer than batch={consumer.batch}",
            "raise its max request batch, or lower batch=",
        )
    if window > consumer.retention:
        yield SourceProblem(
            f"the duplicate window of {stream.name} is {window:g} s, longer than retention="
            f"{consumer.retention:g}: a producer's retry may come after its record is forgotten",
            f"set retention to {window:g} s or more",
        )
    if 0 < (stream.max_age or 0) <= consumer.longest_backoff * consumer.max_attempts:
        yield SourceProblem(
            f"{stream.name} deletes messages after {stream.max_age:g} s, read or not: a message that "
            "is tried again may be gone before its last attempt",
            f"raise max_age above {consumer.longest_backoff * consumer.max_attempts:g} s, or shorten the back-off",
        )


async def _quiet(_: Exception) -> None:
    """Ignored: the failing request reports the error."""
