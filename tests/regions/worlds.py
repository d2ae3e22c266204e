"""Two regions and a register, on stores of every kind; and a world that counts what handlers did."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.servers import NoServerError, shared
from twicesafe import Key
from twicesafe._core.protocol import Browse, ClaimRequest, Complete
from twicesafe._core.regions.epochs import SOURCE, TARGET, On
from twicesafe._core.regions.following import follow
from twicesafe.regions import Regions
from twicesafe.stores.memory import MemoryStore
from twicesafe.testing import FakeClock

__all__ = ["HOUR", "OVERLAP", "OWNER", "PAIRS", "Places", "Stores", "World"]

OVERLAP = 60_000
HOUR = 3_600_000
OWNER = b"o" * 16

PAIRS = (
    ("memory", "sqlite"),
    ("postgres", "postgres"),
    ("valkey", "valkey"),
    ("postgres", "sqlite"),
    ("postgres", "dynamodb"),
    ("mariadb", "valkey"),
    ("postgres", "mongodb"),
    ("mongodb", "dynamodb"),
)

_numbers = itertools.count()


class Places(contextlib.ExitStack):
    """URLs of new, empty stores; removed at the end."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def url(self, kind: str) -> str:
        number = next(_numbers)
        if kind == "memory":
            return f"memory://regions-{number}"
        if kind == "sqlite":
            return f"sqlite:///{self.folder / f'{number}.db'}"
        try:
            server = shared(kind)
        except NoServerError as reason:
            required = os.environ.get("CI") == "true" and not reason.optional
            (pytest.fail if required else pytest.skip)(f"{kind}: {reason}")
        url: str = self.enter_context(server.fresh())
        return url


class World:
    """Two regions. `effects` counts what their handlers did, by key."""

    def __init__(
        self, places: Places, kinds: tuple[str, str] = ("memory", "memory"), **more: Any
    ) -> None:
        self.effects: Counter[str] = Counter()
        self._lock = threading.Lock()
        settings = {"lease": 0.05, "skew": 0.02, **more}
        stores = {name: places.url(kind) for name, kind in zip(("eu", "us"), kinds, strict=True)}
        self.regions = Regions.open(stores, register=places.url("memory"), **settings)
        self.regions.create()
        places.callback(self.regions.close)

    def handle(self, key: str) -> str:
        with self._lock:
            self.effects[key] += 1
        return f"done {key}"

    def deliver(self, region: str, key: str | Key) -> Any:
        value = key.value if isinstance(key, Key) else key
        return self.regions.receiver(region).process(key, self.handle, value)


class Stores:
    """A source and a target with one clock."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.source, self.target = (MemoryStore(now=self.clock) for _ in range(2))

    def do(self, name: str) -> None:
        """Work of the source: from claim to answer, at this moment."""
        key = Key(name)
        fence = self.source.perform(ClaimRequest(key, OWNER, HOUR)).fence
        self.source.perform(Complete(key.id, OWNER, fence, 1000 * HOUR, name.encode()))

    def follow(self, between: Callable[[int], None] = lambda page: None, **more: Any) -> Any:
        """One pass, two records at a time; `between` happens before each page but the first."""
        flow = follow("eu", self.clock, overlap=OVERLAP, steps=False, page=2, **more)
        return self.run(flow, between)

    def run(self, flow: Any, between: Callable[[int], None] = lambda page: None) -> Any:
        places = {SOURCE: self.source, TARGET: self.target}
        reply: Any = None
        pages = 0
        while True:
            try:
                command = flow.send(reply)
            except StopIteration as end:
                return end.value
            assert isinstance(command, On)
            if isinstance(command.request, Browse):
                pages += 1
                if pages > 1:
                    between(pages)
            store = places[command.place]
            many = isinstance(command.request, list)
            reply = (store.perform_many if many else store.perform)(command.request)
