"""Callers that never stop while a server is mistreated, and what must be true afterwards."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from twicesafe import (
    AsyncReceiver,
    LeaseLostError,
    Policy,
    Receiver,
    StillInProgressError,
    StoreUnavailableError,
)

RESTARTS = 8
CALLERS = 8
POLICY = Policy(lease=30, wait=20)


class Load:
    """Callers that deliver each key three times and remember every answer that they got."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.stop = threading.Event()
        self.answers: dict[str, set[str]] = {}
        self.errors: Counter[str] = Counter()
        self.unexpected: list[BaseException] = []
        self.runs: Counter[str] = Counter()
        self._numbers = itertools.count()
        self.progress = 0

    def keys(self) -> Iterator[str]:
        while not self.stop.is_set():
            key = f"key-{next(self._numbers)}"
            yield from (key, key, key)

    def handle(self, key: str) -> str:
        self.runs[key] += 1
        return f"{key} {os.urandom(8).hex()}"

    async def handle_async(self, key: str) -> str:
        return self.handle(key)

    def note(self, key: str, value: str) -> None:
        self.answers.setdefault(key, set()).add(value)
        self.progress += 1

    def failed(self, error: BaseException) -> None:
        # In progress: a claim was granted, its answer was lost, and its lease outlasts our wait.
        if isinstance(error, (StoreUnavailableError, LeaseLostError, StillInProgressError)):
            self.errors[type(error).__name__] += 1
        else:
            self.unexpected.append(error)


class Threads(Load):
    def start(self) -> list[threading.Thread]:
        self.receiver = Receiver.open(self.url, policy=POLICY)
        threads = [threading.Thread(target=self._work) for _ in range(CALLERS)]
        for thread in threads:
            thread.start()
        return threads

    def _work(self) -> None:
        for key in self.keys():
            try:
                self.note(key, self.receiver.process(key, self.handle, key).value)
            except Exception as error:
                self.failed(error)

    def end(self) -> None:
        self.receiver.close()


class Tasks(Load):
    def start(self) -> list[threading.Thread]:
        thread = threading.Thread(target=lambda: asyncio.run(self._main()))
        thread.start()
        return [thread]

    async def _main(self) -> None:
        async with AsyncReceiver.open(self.url, policy=POLICY) as receiver:
            await asyncio.gather(*(self._work(receiver) for _ in range(CALLERS)))

    async def _work(self, receiver: AsyncReceiver) -> None:
        for key in self.keys():
            try:
                self.note(key, (await receiver.process(key, self.handle_async, key)).value)
            except Exception as error:
                self.failed(error)

    def end(self) -> None:
        pass


def until_it_moves(load: Load) -> None:
    """The callers have recovered: some more answers came in."""
    enough = load.progress + 3 * CALLERS
    until = time.monotonic() + 60
    while load.progress < enough:
        assert time.monotonic() < until, f"no caller recovers: {load.errors} {load.unexpected[:3]}"
        time.sleep(0.005)


def survive(load: Any, mistreatments: Iterable[Callable[[], object]], url: str) -> None:
    """Under load, one mistreatment after the other: all recover, and no recorded result is lost."""
    threads = load.start()
    try:
        for mistreat in mistreatments:
            until_it_moves(load)
            mistreat()
        until_it_moves(load)
    finally:
        load.stop.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    load.end()
    assert not load.unexpected, load.unexpected[:3]
    assert len(load.answers) > RESTARTS
    with Receiver.open(url) as receiver:
        replayed = {key: receiver.process(key, never).value for key in load.answers}
    assert {key: {value} for key, value in replayed.items()} == load.answers
    assert max(load.runs.values()) == 1, "a recorded claim or result was lost"


def never() -> str:
    raise AssertionError("a recorded result was lost")
