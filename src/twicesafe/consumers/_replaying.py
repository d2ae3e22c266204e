"""Operating the dead letters: look at them, replay them under their old keys, or discard them.

    with DeadLetters.open("kafka://127.0.0.1:9092?topics=orders.dead&group=operators") as dead:
        for letter in dead.look():
            print(letter.id, letter.reason)
        dead.replay(receiver, by="ann", why="the customer exists now", chosen=lambda one: …)
        dead.discard(receiver, by="ann", why="a test message", chosen=lambda one: …)

A replay releases the parked key of the message, publishes the message where it came from, and then
removes the dead letter. If the process dies in between, the message is published again under the
same id, and its key makes it run once. A discard writes who and why to the audit trail of the key,
which stays parked, and then removes the dead letter. When no letter of an ordering key is left, its
later messages run again. Looking changes nothing: what was fetched is given back.

The command line and the dashboard do both with this class.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Self, TypeAlias

import msgspec

from .._core import operations
from .._core.commands import Flow
from .._core.consuming.message import Received
from .._core.consuming.source import Source
from .._runtime.adapting import for_threads
from .._values.keys import Key
from .._values.records import State
from ..errors import UsageError
from ..receiver import Receiver
from ._base import opened
from ._dead_letters import broker_of, destination
from ._letters import Chosen, Letter, letter_of, revived

__all__ = ["DeadLetters", "Discarded", "ReplayReport"]

Run: TypeAlias = Callable[[Flow[Any]], Any]
"""Runs a request of a receiver, and waits for its end."""

PAGE: Final = 500
QUIET: Final = 1.0
"""Seconds without a message after which all of them have been seen."""


class ReplayReport(msgspec.Struct):
    """What a replay did."""

    replayed: int = 0
    held: list[str] = []
    """Letters that were left, because the outcome of their key is unknown: resolve it first. If
    order matters, also the later letters of the same key."""


class Discarded(msgspec.Struct):
    """What a discard did."""

    discarded: int = 0
    unaudited: list[str] = []
    """Of these, the letters whose key has no record: nothing was there to write who and why to."""


class DeadLetters:
    """The dead letters at a source. Blocking."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._adapted = for_threads(source, "fetch")

    @classmethod
    def open(cls, url: str) -> Self:
        """The dead letters at this URL: that of a consumer, with the dead topic, stream or queue."""
        source: Any = opened(url, cls.__name__)
        if hasattr(source, "hold_many"):
            source.hold_many()
        return cls(source)

    def look(self, limit: int = 1000) -> list[Letter]:
        """Return the oldest dead letters, as many as the source may hold at a time. They stay where they are.

        It creates no stream, no group and no durable consumer. A stream that does not exist is an error.
        """
        if hasattr(self.source, "peek"):
            there = self._adapted.peek(limit)
            if there is not None:
                return [letter_of(message) for message in there]
        with self._holding() as held:
            self._fetch(held, limit)
            return [letter_of(one.message) for one in held]

    def replay(
        self,
        receiver: Receiver,
        *,
        by: str,
        why: str,
        chosen: Chosen | None = None,
        to: str | None = None,
        limit: int = 1_000_000,
        run: Run | None = None,
    ) -> ReplayReport:
        """Send letters back to where they came from, in their order; ``chosen`` says which.

        ``receiver``: opened on the store of the consumer that gave up on them. ``to``: the
        publisher to send them to; default: the broker that the letters are on. ``run``: runs a
        request of the receiver, if that is async.
        """
        replay = _Replay(self, receiver, run or receiver._runtime.run, by, why, to)
        try:
            with self._holding() as held:
                for page in self._pages(held, limit):
                    replay.send(page, held, chosen)
        finally:
            replay.close()
        return replay.report

    def _check_broker(self, letter: Letter) -> None:
        """Without ``to``, a letter of another broker would go where no consumer reads it."""
        here = broker_of(self.source)
        if letter.broker and here and letter.broker != here:
            raise UsageError(
                f"the dead letter {letter.id[:80]!r} came from {letter.broker}, and is on {here}; it was not moved: "
                "give the publisher to send it to (to= or --to, a URL)"
            )

    def discard(
        self,
        receiver: Receiver,
        *,
        by: str,
        why: str,
        chosen: Chosen,
        limit: int = 1_000_000,
        run: Run | None = None,
    ) -> Discarded:
        """Delete the chosen letters; their keys stay parked, so a repeat does not run.

        ``receiver`` and ``run``: as for `replay`. The audit entry is written before the letter is
        deleted. Later messages of an ordering key run again if none of its letters is left.
        """
        done, run = Discarded(), run or receiver._runtime.run
        lanes: set[Key] = set()
        with self._holding() as held:
            for page in self._pages(held, limit):
                gone = [one for one in page if chosen(letter_of(one.message))]
                for one in gone:
                    letter = letter_of(one.message)
                    if letter.lane is not None:
                        lanes.add(letter.lane)
                    if not _audited(receiver, run, letter, by, why):
                        done.unaudited.append(letter.id)
                if gone:
                    self._adapted.acknowledge([one.receipt for one in gone])
                for one in gone:
                    held.remove(one)
                done.discarded += len(gone)
            if len(held) < self.source.most_held and done.discarded + len(held) < limit:
                # All letters were seen.
                for lane in lanes - {letter_of(one.message).lane for one in held}:
                    _release(receiver, run, lane, run(operations.read(lane)), by, why)
        return done

    def close(self) -> None:
        """Close the connection to the broker."""
        self._adapted.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _holding(self) -> Iterator[list[Received]]:
        """A list for letters; what is in it at the end is given back."""
        held: list[Received] = []
        try:
            yield held
        finally:
            if held:
                self._adapted.give_back([one.receipt for one in held], 0.0)

    def _pages(self, held: list[Received], limit: int) -> Iterator[list[Received]]:
        """All letters, up to the limit. A broker may not let us hold all of them at a time: then the
        next page comes when the caller has settled some, and removed them from `held`."""
        seen = 0
        while seen < limit:
            start = len(held)
            self._fetch(held, start + limit - seen)
            page, full = held[start:], len(held) >= self.source.most_held
            seen += len(page)
            yield page
            if not full or len(held) == start + len(page):
                return

    def _fetch(self, held: list[Received], limit: int) -> None:
        """Add letters until ``limit`` are held, or as many as the source allows, or all that there are."""
        while (room := min(limit, self.source.most_held) - len(held)) > 0:
            joined = getattr(self.source, "joined", True)
            some: Sequence[Received] = self._adapted.fetch(min(PAGE, room), QUIET)
            if not some and joined:
                return
            held.extend(some)


class _Replay:
    """One replay: what it has sent so far, and what it has left."""

    def __init__(
        self, dead: DeadLetters, receiver: Receiver, run: Run, by: str, why: str, to: str | None
    ) -> None:
        self._dead, self._receiver, self._run = dead, receiver, run
        self._by, self._why, self._to = by, why, to
        self.report = ReplayReport()
        self._publishers: dict[object, Any] = {}
        self._replayed: set[str] = set()
        """On earlier pages. What comes again has died again, and stays."""
        self._lanes: set[Key] = set()
        """Released. One that is parked again has another dead letter: the lane's later ones wait behind it."""
        self._waiting: set[Key | None] = set()
        """Lanes with a letter that was left."""

    def send(self, page: list[Received], held: list[Received], chosen: Chosen | None) -> None:
        """Send the chosen letters of a page, and take them out of `held`."""
        sent: set[str] = set()
        for one in page:
            letter = letter_of(one.message)
            if letter.id in self._replayed or (chosen is not None and not chosen(letter)):
                continue
            if self._to is None:
                self._dead._check_broker(letter)
            if letter.lane in self._waiting or not self._release(letter):
                self.report.held.append(letter.id)
                self._waiting |= {letter.lane} - {None}
                continue
            self._publish(letter)
            self._dead._adapted.acknowledge([one.receipt])
            held.remove(one)
            sent.add(letter.id)
            self.report.replayed += 1
        self._replayed |= sent

    def _release(self, letter: Letter) -> bool:
        """Let the key's next delivery run. False: its outcome is unknown, so it must not run yet."""
        lane = None if letter.lane in self._lanes else letter.lane
        found = [key for key in (letter.key, letter.starts, lane) if key is not None]
        records = [self._run(operations.read(key)) for key in found]
        if any(record is not None and record.state is State.HELD for record in records):
            return False
        for key, record in zip(found, records, strict=True):
            _release(self._receiver, self._run, key, record, self._by, self._why)
        if lane is not None:
            self._lanes.add(lane)
        return True

    def _publish(self, letter: Letter) -> None:
        url = self._to or self._dead.source.replay_url(letter.place)
        if url not in self._publishers:
            self._publishers[url] = for_threads(destination(url)[0], "publish")
        (refusal,) = self._publishers[url].publish([revived(letter)])
        if refusal is not None:
            raise refusal

    def close(self) -> None:
        for publisher in self._publishers.values():
            publisher.close()


def _release(receiver: Receiver, run: Run, key: Key, record: Any, by: str, why: str) -> None:
    """Only if it is parked, and only as it was read: another operator may have released it, and a
    worker may run it."""
    if record is not None and record.state is State.PARKED:
        with contextlib.suppress(UsageError):
            run(receiver._release(key, by, why, False, record.fence))


def _audited(receiver: Receiver, run: Run, letter: Letter, by: str, why: str) -> bool:
    """Write who and why to the trail of the letter's key. False: there is no record of one."""
    for key in (letter.key, letter.starts):
        if key is not None and run(operations.read(key)) is not None:
            run(receiver._discard(key, by, why))
            return True
    return False
