"""One process of a crowd. Run as a script by the tests; told what to do line by line.

    crowd.py URL LEDGER threads|tasks COUNT
    → ready
    ← KEY...          COUNT callers start at once, each with every KEY ("*" in a key: the caller)
    → {"values": how many callers got which value, "errors": …}

The processes stay alive over the rounds, so that a round measures the store and not Python's start.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections import Counter

from twicesafe import AsyncReceiver, Policy, Receiver

POLICY = Policy(wait=60, max_waiters=1000)
TIME_LIMIT = "timeout=60"
"""Of the store, in its URL: a crowd on a slow machine waits for connections, which is no error."""


class Crowd:
    def __init__(self, url: str, ledger: str, count: int) -> None:
        self.url = f"{url}{'&' if '?' in url else '?'}{TIME_LIMIT}"
        self.count = count
        self.values: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self._ledger = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def handle(self, key: str) -> str:
        os.write(self._ledger, f"{key}\n".encode())
        return f"{key} {os.urandom(16).hex()}"

    def failed(self, error: Exception) -> None:
        self.errors[f"{type(error).__name__}: {error} / {error.__cause__!r}"] += 1

    def tell(self) -> None:
        print(json.dumps({"values": self.values, "errors": self.errors}), flush=True)
        self.values.clear()
        self.errors.clear()


class Threads(Crowd):
    def run(self) -> None:
        keys: list[str] = []
        start = threading.Barrier(self.count + 1)
        end = threading.Barrier(self.count + 1)
        lock = threading.Lock()
        with Receiver.open(self.url, policy=POLICY) as receiver:

            def call(caller: int) -> None:
                while True:
                    start.wait()
                    if not keys:
                        return
                    for key in keys:
                        own = key.replace("*", f"{os.getpid()}-{caller}")
                        try:
                            value = receiver.process(own, self.handle, own).value
                        except Exception as error:
                            with lock:
                                self.failed(error)
                        else:
                            with lock:
                                self.values[value] += 1
                    end.wait()

            threads = [threading.Thread(target=call, args=(n,)) for n in range(self.count)]
            for thread in threads:
                thread.start()
            print("ready", flush=True)
            for line in sys.stdin:
                keys[:] = line.split()
                start.wait()
                end.wait()
                self.tell()
            keys.clear()
            start.wait()
            for thread in threads:
                thread.join()


class Tasks(Crowd):
    def run(self) -> None:
        asyncio.run(self._run())

    async def _handle(self, key: str) -> str:
        await asyncio.sleep(0)
        return self.handle(key)

    async def _run(self) -> None:
        async with AsyncReceiver.open(self.url, policy=POLICY) as receiver:

            async def call(caller: int, keys: list[str]) -> None:
                for key in keys:
                    own = key.replace("*", f"{os.getpid()}-{caller}")
                    try:
                        self.values[(await receiver.process(own, self._handle, own)).value] += 1
                    except Exception as error:
                        self.failed(error)

            print("ready", flush=True)
            while line := await asyncio.to_thread(sys.stdin.readline):
                await asyncio.gather(*(call(n, line.split()) for n in range(self.count)))
                self.tell()


if __name__ == "__main__":
    url, ledger, kind, count = sys.argv[1:]
    {"threads": Threads, "tasks": Tasks}[kind](url, ledger, int(count)).run()
