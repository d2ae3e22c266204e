"""A driver whose call never ends: the program that consumes can end nevertheless."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import pytest

PROGRAM: Final = """
import asyncio
import signal
import sys
import threading
import time

from twicesafe import AsyncReceiver, Receiver
from twicesafe.consumers import AsyncConsumer, Consumer
from twicesafe.testing import MemoryBroker
from twicesafe.testing._memory_broker import MemorySource

hangs = threading.Event()


class Hung(MemorySource):
    def fetch(self, most, seconds):
        hangs.set()
        threading.Event().wait()


source = Hung(MemoryBroker(), "orders")


def interrupt(consumer):
    hangs.wait()
    main = threading.main_thread().ident
    signal.pthread_kill(main, signal.SIGINT)
    while not consumer._runner._state.stopping:  # it waits for the fetch
        time.sleep(0.001)
    signal.pthread_kill(main, signal.SIGINT)


def consume():
    with Receiver.open("memory://") as receiver:
        consumer = Consumer(source, receiver=receiver)
        threading.Thread(target=interrupt, args=[consumer], daemon=True).start()
        consumer.run(print)


async def handle(message): ...


async def consume_async():
    async with AsyncReceiver.open("memory://") as receiver:
        running = asyncio.create_task(AsyncConsumer(source, receiver=receiver).run(handle))
        await asyncio.to_thread(hangs.wait)
        running.cancel()
        await asyncio.wait([running])


def main():
    try:
        asyncio.run(consume_async()) if sys.argv[1] == "async" else consume()
    except KeyboardInterrupt:
        pass


main()
print("ended", flush=True)
"""


@pytest.mark.parametrize("kind", ["blocking", "async"])
def test_a_fetch_that_hangs_does_not_keep_the_program_from_ending(kind: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, kind],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.stdout == "ended\n", done.stderr
    assert done.returncode == 0
