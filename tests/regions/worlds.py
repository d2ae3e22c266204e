"""Two regions and a register, on stores of every kind; and a world that counts what handlers did."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.servers import NoServerError, shared
from twicesafe import Key
from twicesafe.regions import Regions

__all__ = ["PAIRS", "Places", "World"]

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
