"""A source and a publisher of your own: a queue is a folder, a message is a file in it.

    spool:///var/spool/shop?queue=orders

A message is in ``ready``, or in ``held`` while a consumer has it. A rename moves it, so one consumer
gets it. The end of its name counts the deliveries, so a receipt from an earlier delivery names a file
that no longer exists: it is void. A file that was held for `ack_wait` seconds without being touched is
ready again: its consumer is dead. For the processes of one machine.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Self
from urllib.parse import parse_qs, urlsplit

from twicesafe.consumers.sources import ConsumerSettings, Message, Received, Revoke, SourceProblem
from twicesafe.outbox.publishers import Answer
from twicesafe.outbox.publishers import Message as Outgoing

gone = contextlib.suppress(FileNotFoundError)
"""Another consumer was faster."""


class SpoolSource:
    can_delay = False
    most_held = 1000
    place = ""

    def __init__(self, root: Path, queue: str, ack_wait: float = 30.0) -> None:
        self.root, self.name, self.ack_wait = root, queue, ack_wait
        self.ready, self.held = _folders(root, queue)

    @classmethod
    def open(cls, url: str) -> Self:
        parts = urlsplit(url)
        return cls(Path(parts.path), parse_qs(parts.query)["queue"][0])

    # -- messages -------------------------------------------------------------------------------

    def fetch(self, most: int, seconds: float) -> list[Received]:
        until = time.monotonic() + seconds
        while True:
            self._take_back()
            found = [
                one for path in sorted(self.ready.iterdir())[:most] for one in self._hold(path)
            ]
            if found or time.monotonic() >= until:
                return found
            time.sleep(0.02)

    def _hold(self, path: Path) -> list[Received]:
        name, _, count = path.name.rpartition(".")
        mine = self.held / f"{name}.{int(count) + 1}"
        with gone:
            os.utime(path)
            path.rename(mine)
            given = json.loads(mine.read_bytes())
            body = base64.b64decode(given.pop("body"))
            message = Message(body=body, **given, deliveries=int(count) + 1, position=name)
            return [Received(message, mine.name)]
        return []

    def _take_back(self) -> None:
        """What a dead consumer held is ready again."""
        for path in self.held.iterdir():
            with gone:
                if time.time() - path.stat().st_mtime > self.ack_wait:
                    path.rename(self.ready / path.name)

    def acknowledge(self, receipts: Sequence[str]) -> None:
        for receipt in receipts:
            (self.held / receipt).unlink(missing_ok=True)

    def give_back(self, receipts: Sequence[str], seconds: float) -> None:
        for receipt in receipts:
            with gone:
                (self.held / receipt).rename(self.ready / receipt)

    def extend(self, receipts: Sequence[str]) -> None:
        for receipt in receipts:
            with gone:
                os.utime(self.held / receipt)

    # -- dead letters and replays ---------------------------------------------------------------

    @property
    def dead_url(self) -> SpoolPublisher:
        return SpoolPublisher(self.root)

    def dead_topic(self, topic: str) -> str:
        return f"{topic}.dead"

    def prepare_dead_letters(self) -> None:
        _folders(self.root, self.dead_topic(self.name))

    def origin(self, topic: str) -> str:
        return topic

    def replay_url(self, place: str) -> SpoolPublisher:
        return self.dead_url

    def scope(self, topic: str) -> tuple[str, ...]:
        return (self.name, topic)

    # -- settings, and what a folder does not have ------------------------------------------------

    def check(self, consumer: ConsumerSettings) -> list[SourceProblem]:
        if os.access(self.ready, os.W_OK):
            return []
        return [
            SourceProblem(f"{self.ready} cannot be written", "let this user rename files there")
        ]

    def listen(self, revoke: Revoke | None) -> None:
        """No part of a folder is taken away."""

    def release(self, partitions: frozenset[str]) -> None:
        """No part of a folder is taken away."""

    def close(self) -> None:
        """Nothing to close."""


class SpoolPublisher:
    batch = 100
    concurrency = 1
    keeps_order = True

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def open(cls, url: str) -> Self:
        return cls(Path(urlsplit(url).path))

    def publish(self, messages: Sequence[Outgoing]) -> list[Answer]:
        return [self._put(message) for message in messages]

    def _put(self, message: Outgoing) -> None:
        ready, _ = _folders(self.root, message.topic)
        given = {
            "id": message.id, "topic": message.topic, "key": message.key,
            "headers": dict(message.headers), "body": base64.b64encode(message.body).decode(),
        }  # fmt: skip
        written = self.root / f".{uuid.uuid4().hex}"
        with written.open("wb") as file:
            file.write(json.dumps(given).encode())
            file.flush()
            os.fsync(file.fileno())
        written.rename(ready / f"{time.time_ns()}-{uuid.uuid4().hex[:8]}.0")

    def close(self) -> None:
        """Nothing to close."""


def _folders(root: Path, queue: str) -> tuple[Path, Path]:
    ready, held = root / queue / "ready", root / queue / "held"
    for folder in (ready, held):
        folder.mkdir(parents=True, exist_ok=True)
    return ready, held
