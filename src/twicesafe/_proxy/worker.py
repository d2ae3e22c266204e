"""One worker process: serves on the supervisor's socket until SIGTERM.

    python -m twicesafe._proxy.worker FD        settings on standard input, as one line of JSON

After that, each line on standard input asks for a report on standard output. SIGTERM, or the end of
standard input, starts the shutdown: no new connections, and running requests finish within `grace`,
even if their clients are gone. After `grace`, the key of a request that was sent is held, and the key of
one that was not sent is released.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from typing import Any

import msgspec

from .._core.http.forwarding import Forwarding
from .._values.keys import Key
from .._values.policy import Policy
from ..encryption import KeyRing
from ..errors import TwicesafeError
from ..receiver import AsyncReceiver
from .front import Front
from .log_lines import set_up
from .metrics import Metrics, WorkerCount
from .server import server
from .settings import ProxySettings
from .upstream import Upstream

__all__ = ["Worker", "WorkerReport"]

_PROBE = Key("probe", ("twicesafe", "proxy"), absolute=True)


class WorkerReport(msgspec.Struct, frozen=True):
    """A worker's counts and health."""

    counts: list[WorkerCount] = []
    store: bool = True
    """The store answers."""


class Worker:
    """One worker process, built from the settings."""

    def __init__(self, settings: ProxySettings, receiver: AsyncReceiver | None = None) -> None:
        self.settings = settings
        self._until = 0.0
        """When the grace period ends; 0: not stopping."""
        self.metrics = Metrics(access=settings.access_log)
        ring = KeyRing.load(settings.encryption) if settings.encryption else None
        self.receiver = receiver or AsyncReceiver.open(
            settings.store, policy=Policy(encryption=ring), observers=[self.metrics]
        )
        policy = settings.policy()
        forwarding = Forwarding(policy, trusted=settings.trusted, forwarded=settings.forwarded)
        self.upstream = Upstream(
            settings.upstream,
            forwarding,
            connect_timeout=settings.connect_timeout,
            timeout=settings.upstream_timeout,
            idle=settings.upstream_idle,
            connections=settings.upstream_connections,
            context=settings.trust(),
            metrics=self.metrics,
        )
        client_timeout = settings.client_timeout
        self.front = Front(
            self.upstream,
            self.receiver,
            policy,
            forwarding,
            self.metrics,
            client_timeout,
            settings.mcp_tools(),
        )
        self.server = server(
            self.front,
            client_timeout=client_timeout,
            keep_alive=settings.keep_alive,
            max_head=settings.max_head,
            grace=settings.grace,
            problem_base=policy.problem_base,
        )

    async def serve(self, listening: socket.socket) -> None:
        if self.settings.sweep:
            self.receiver.maintain(every=self.settings.sweep)
        try:
            await self.server.serve([listening])
        finally:
            left = self._until - asyncio.get_running_loop().time() if self._until else 0
            await self.front.finish(max(0.0, left))
            self.upstream.close()
            await self.receiver.close()

    def stop(self) -> None:
        if not self.server.should_exit:
            self._until = asyncio.get_running_loop().time() + self.settings.grace
            self.server.should_exit = True

    async def report(self) -> WorkerReport:
        try:
            async with asyncio.timeout(2):
                await self.receiver.record(_PROBE)
        except (TwicesafeError, TimeoutError):
            return WorkerReport(self.metrics.counts(), store=False)
        return WorkerReport(self.metrics.counts())


async def _answer_supervisor(worker: Worker, asked: asyncio.StreamReader) -> None:
    """Answer each line with a report; stop when the input ends: the supervisor is gone."""
    while await asked.readline():
        _write(await worker.report())
    worker.stop()


def _write(report: WorkerReport) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
    sys.stdout.buffer.flush()


async def _run(listening: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    asked = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(asked), sys.stdin)
    settings = msgspec.json.decode(await asked.readline(), type=ProxySettings)
    set_up(settings.log_level, settings.log_format)
    worker = Worker(settings)
    loop.add_signal_handler(signal.SIGTERM, worker.stop)
    for ignored in (signal.SIGINT, signal.SIGHUP):  # the supervisor handles these
        loop.add_signal_handler(ignored, lambda: None)
    _write(WorkerReport())
    obeying = asyncio.ensure_future(_answer_supervisor(worker, asked))
    try:
        await worker.serve(listening)
    finally:
        obeying.cancel()
        _write(WorkerReport(worker.metrics.counts()))


def main(arguments: list[str] | None = None) -> Any:
    (fd,) = arguments or sys.argv[1:]
    asyncio.run(_run(socket.socket(fileno=int(fd))))


if __name__ == "__main__":
    main()
