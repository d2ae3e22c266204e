"""A primary falls silent, is replaced by its replica, and wakes without knowing it (C6).

It is stopped (SIGSTOP), so nothing is refused and nothing is cut. Part of the fleet was busy and met
the silence; another part was idle and met nothing: its connections stand, and the server at their end
says that it is the primary. While the old primary is still sure of itself, everybody delivers what was
finished on the new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

from tests.servers import launch
from twicesafe import AsyncReceiver, Policy, Receiver, StoreUnavailableError

from .trial import Trial, trial

__all__ = ["silent_primary"]

TIME_LIMIT = 120.0
AGAIN = "run again"


class _Tasks:
    """An async receiver, called as the blocking one."""

    def __init__(self, url: str, policy: Policy) -> None:
        self._runner = asyncio.Runner()
        self._receiver = AsyncReceiver.open(url, policy=policy)

    def process(self, key: str, value: str) -> str:
        async def handle() -> str:
            return value

        async def deliver() -> str:
            return (await self._receiver.process(key, handle)).value

        return self._runner.run(deliver())

    def close(self) -> None:
        self._runner.run(self._receiver.close())
        self._runner.close()


class _Threads:
    def __init__(self, url: str, policy: Policy) -> None:
        self._receiver = Receiver.open(url, policy=policy)

    def process(self, key: str, value: str) -> str:
        return self._receiver.process(key, str, value).value

    def close(self) -> None:
        self._receiver.close()


@trial("silent primary", "C6", "failovers", ("valkey",))
def silent_primary(t: Trial) -> None:
    """The primary is paused until its replica has taken over, then it resumes. Does a finished key run
    again, either for a worker that got no answer or for one that was idle?"""
    for number in range(t.size(1, 10)):
        _one_silence(t, number)
        t.tried += 1


def _one_silence(t: Trial, number: int) -> None:
    policy = Policy(lease=30, wait=20)
    with contextlib.ExitStack() as stack:
        pair = stack.enter_context(launch("valkey_sentinel", down_after="1500"))
        stack.callback(pair.primary.resume)

        def worker(kind: Any, timeout: float) -> Any:
            made = kind(f"{pair.url}?timeout={timeout:g}", policy)
            stack.callback(made.close)
            made.process(f"warm-{kind.__name__}-{timeout:g}-{number}", "x")
            return made

        idle = [worker(kind, 30) for kind in (_Threads, _Tasks)]
        busy = [worker(kind, 1) for kind in (_Threads, _Tasks)]
        pair.primary.pause()
        for each in busy:
            _until_it_moves(each, f"moves-{type(each).__name__}-{number}")
        keys = [f"key-{number}-{n}" for n in range(t.size(100, 500))]
        finished = {key: busy[n % 2].process(key, f"{key}/first") for n, key in enumerate(keys)}
        pair.primary.resume()
        told = _is_primary(pair.primary)
        for each in (*idle, *busy):
            for key, value in finished.items():
                again = each.process(key, AGAIN)
                t.count("deliveries of finished keys")
                if again != value:
                    t.broke(f"{type(each).__name__}: {key} was finished, and ran again")
        t.count("awakenings at which the old primary was sure of itself", told)


def _until_it_moves(worker: Any, key: str) -> None:
    until = time.monotonic() + TIME_LIMIT
    while True:
        try:
            worker.process(key, "x")
            return
        except StoreUnavailableError:
            if time.monotonic() > until:
                raise


def _is_primary(server: Any) -> int:
    with server.client() as client:
        return int(client.info("replication")["role"] == "master")
