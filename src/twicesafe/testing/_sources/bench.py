"""What the rules use: members of a group, messages to send, and waiting until something has come."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from ..._core.consuming.message import Received
from ..._core.outbox.requests import Message
from ..._runtime.adapting import for_threads
from ...errors import BrokerUnavailableError
from ...outbox.publishers import open_publisher
from .hooks import SourceUnderTest

__all__ = ["BlockingSource", "SourceBench"]


class BlockingSource:
    """A source, blocking or async, with blocking methods."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.source, name)

        def call(*arguments: Any) -> Any:
            done = method(*arguments)
            if inspect.isawaitable(done):
                return asyncio.run_coroutine_threadsafe(_awaited(done), self.loop).result()
            return done

        return call

    def end(self) -> None:
        try:
            self.close()
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
            self.loop.close()


async def _awaited(work: Any) -> Any:
    return await work


class SourceBench(SourceUnderTest):
    @contextmanager
    def member(self) -> Iterator[BlockingSource]:
        member = BlockingSource(self.open_source())
        try:
            yield member
        finally:
            member.end()

    @contextmanager
    def members(self, count: int) -> Iterator[list[BlockingSource]]:
        with ExitStack() as stack:
            yield [stack.enter_context(self.member()) for _ in range(count)]

    def send(self, count: int = 1, **fields: Any) -> list[Message]:
        """Messages, sent by the outbox's publisher."""
        sent = [self.message(**fields) for _ in range(count)]
        self.publish(self.publisher_url(), sent)
        return sent

    def message(self, **fields: Any) -> Message:
        id_ = str(uuid.uuid4())
        given = {"key": None, "headers": {"idempotency-key": f'"{id_}"'}} | fields
        return Message(id_, self.topic(), b"body of " + id_.encode(), **given)

    def fetch(self, member: BlockingSource, most: int, seconds: float) -> Sequence[Received]:
        """As the flow does: an outage is no end."""
        try:
            return member.fetch(most, seconds)  # type: ignore[no-any-return]
        except BrokerUnavailableError:
            return []

    def gather(self, member: BlockingSource, *ids: str) -> dict[str, Received]:
        """Fetch until these have come; the last delivery of each."""
        return {id_: one for id_, (one, _) in self.gather_by([member], *ids).items()}

    def gather_by(
        self, members: Sequence[BlockingSource], *ids: str
    ) -> dict[str, tuple[Received, BlockingSource]]:
        """By any of these members: a broker that pushes chooses among the connected ones."""
        found: dict[str, tuple[Received, BlockingSource]] = {}
        until = time.monotonic() + self.seconds
        while not found.keys() >= set(ids):
            assert time.monotonic() < until, f"{len(ids) - len(found)} never came"
            for member in members:
                for one in self.fetch(member, 10, 0.5 / len(members)):
                    assert one.message.id is not None
                    found[one.message.id] = one, member
        return found

    def assert_empty(self, member: BlockingSource) -> None:
        """Nothing is left, and nothing comes."""
        if self.unsettled() is None:
            until = time.monotonic() + 1.5 * member.source.ack_wait + 0.5
            while time.monotonic() < until:
                assert [one.message for one in self.fetch(member, 10, 0.3)] == []
        else:
            assert self.unsettled() == 0
            assert [one.message for one in self.fetch(member, 10, 0)] == []

    def settle(self, member: BlockingSource, got: Sequence[Received], ids: Collection[str]) -> None:
        """Acknowledge these. A receipt may be void after an outage: then its message comes again."""
        member.acknowledge([one.receipt for one in got])
        until = time.monotonic() + self.seconds
        quiet = time.monotonic() + 1.5 * member.source.ack_wait + 0.5
        while time.monotonic() < quiet if self.unsettled() is None else self.unsettled():
            assert time.monotonic() < until, "some never came again"
            again = self.fetch(member, 10, 0.2)
            assert {one.message.id for one in again} <= set(ids)
            member.acknowledge([one.receipt for one in again])
        self.assert_empty(member)

    def publish(self, url: Any, messages: Sequence[Message]) -> None:
        publisher = for_threads(open_publisher(url) if isinstance(url, str) else url, "publish")
        try:
            assert list(publisher.publish(messages)) == [None] * len(messages)
        finally:
            publisher.close()

    def redelivered(self) -> int | None:
        """What a message says of its second delivery."""
        return 2 if self.counts else None
