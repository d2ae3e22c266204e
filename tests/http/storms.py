"""Fifty requests with one key at the same moment, over real sockets, to whatever is behind them."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from tests.http.stage import read

__all__ = ["storm"]

STORMS = int(os.environ.get("TWICESAFE_STORMS", "2"))


class Door(Protocol):
    def connect(self) -> socket.socket: ...
    def request(self, key: str) -> bytes: ...


def storm(door: Door, effects: Callable[[], dict[str, int]]) -> None:
    """All are let go by their last bytes: one has the effect, and all get its answer."""
    keys = [f"storm-{number}" for number in range(STORMS)]
    with ThreadPoolExecutor(50) as pool:
        for key in keys:
            connections = [door.connect() for _ in range(50)]
            request = door.request(key)
            for connection in connections:
                connection.sendall(request[:-1])
            for connection in connections:
                connection.sendall(request[-1:])
            replies = list(pool.map(read, connections))
            for connection in connections:
                connection.close()
            assert {reply.status for reply in replies} == {201}
            assert len({reply.body for reply in replies}) == 1
            assert sum(not reply.replayed for reply in replies) == 1
    assert effects() == dict.fromkeys(keys, 1)
