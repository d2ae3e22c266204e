"""A network with a delay, between a program here and a server here: ``python -m benchmarks.delay PORT SECONDS``.

It carries bytes in both directions and hands them on half of SECONDS later, so that a round trip takes
SECONDS more. It runs in a process of its own, so that its work is not counted as the contestant's, and
prints the port that it listens on. It ends when its standard input is closed.
"""

from __future__ import annotations

import asyncio
import atexit
import selectors
import subprocess
import sys
from collections import deque


class Delay:
    """The delaying process, for as long as this process lives or until it is stopped."""

    def __init__(self, port: int, seconds: float) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.delay", str(port), str(seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        atexit.register(self.stop)

    def stop(self) -> None:
        atexit.unregister(self.stop)
        self._process.communicate()


class Direction(asyncio.Protocol):
    """One end of a connection: what arrives here leaves at the other end, later and in order."""

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._loop = asyncio.get_running_loop()
        self._held: deque[bytes] = deque()
        self._waiting: deque[bytes] = deque()
        self.transport: asyncio.Transport | None = None
        self.other: Direction | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._pass_on()

    def data_received(self, data: bytes) -> None:
        self._later(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._later(b"")

    def _later(self, data: bytes) -> None:
        self._held.append(data)
        self._loop.call_later(self._delay, self._release)

    def _release(self) -> None:
        """The oldest first: timers that are due at the same time fire in any order."""
        assert self.other is not None
        self.other.write(self._held.popleft())

    def write(self, data: bytes) -> None:
        """Empty: the other end has closed."""
        self._waiting.append(data)
        self._pass_on()

    def _pass_on(self) -> None:
        while self.transport is not None and self._waiting:
            data = self._waiting.popleft()
            if data:
                self.transport.write(data)
            else:
                self.transport.close()


async def serve(port: int, seconds: float) -> None:
    loop = asyncio.get_running_loop()

    def accept() -> Direction:
        here, there = Direction(seconds / 2), Direction(seconds / 2)
        here.other, there.other = there, here

        async def connect() -> None:
            try:
                await loop.create_connection(lambda: there, "127.0.0.1", port)
            except OSError:
                here.write(b"")

        connecting.add(task := loop.create_task(connect()))
        task.add_done_callback(connecting.discard)
        return here

    connecting: set[asyncio.Task[None]] = set()
    server = await loop.create_server(accept, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await loop.run_in_executor(None, sys.stdin.read)


def precise_loop() -> asyncio.AbstractEventLoop:
    """epoll, the usual choice, waits in whole milliseconds; select waits as long as it should."""
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=precise_loop) as runner:
        runner.run(serve(int(sys.argv[1]), float(sys.argv[2])))
