"""The supervisor: holds the listening socket, keeps workers alive, and replaces them.

    SIGTERM, SIGINT   no new requests; running ones finish within `grace`; then this process exits
    SIGHUP            reload the settings: new workers take over, then the old ones exit. Invalid
                      settings are logged, and nothing changes
    a worker dies     another one starts; requests that it had sent are held when their leases expire

The socket stays open in between: a client waits a moment instead of being refused. Health and metrics
are served here, on a separate listener, because they cover all workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Callable
from typing import Final

import msgspec

from .._edges.listener import ListenAddress, shown
from ..errors import ConfigurationError, TwicesafeError
from ..stores._urls import mask
from .admin import Admin
from .metrics import WorkerCount, added
from .server import server
from .settings import ProxySettings, check_store
from .worker import WorkerReport

__all__ = ["Greeting", "Supervisor"]

_log = logging.getLogger("twicesafe._proxy")

_MARGIN: Final = 5.0
"""How long after its grace period a worker is killed, in seconds."""
_FIXED: Final = ("listen", "admin", "store")
"""Settings that need a restart: keys and clients would be in two places."""


class Greeting(msgspec.Struct, frozen=True):
    """Passed to ``ready`` when the proxy starts to serve."""

    listening: str
    upstream: str
    store: str
    admin: str | None


class Supervisor:
    def __init__(
        self,
        read: Callable[[], ProxySettings],
        ready: Callable[[Greeting], object] = lambda _: None,
    ) -> None:
        self._read, self._ready = read, ready
        self.settings = read()
        self._workers: set[_Process] = set()
        self._leaving: set[_Process] = set()
        self._stopping = asyncio.Event()
        self._changes = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._past: list[WorkerCount] = []
        """The last known counts of workers that have exited."""

    async def run(self) -> None:
        """Serve until a signal ends it. Raises `ConfigurationError` before it listens."""
        settings = self.settings
        await check_store(settings.store)
        with ListenAddress.of(settings.listen, "listen").bind() as public:
            self._public = public
            admin = ListenAddress.of(settings.admin, "admin").bind() if settings.admin else None
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._stopping.set)
            loop.add_signal_handler(signal.SIGHUP, lambda: self._spawn(self.reload()))
            try:
                self._workers = await self._start(settings)
                if admin is not None:
                    self._spawn(self._serve_admin(admin))
                self._ready(self._greeting(public, admin))
                await self._stopping.wait()
            finally:
                await self._stop()
                for task in self._tasks:
                    task.cancel()
                if admin is not None:
                    admin.close()

    async def reload(self) -> None:
        """Start workers with the new settings; on an error log it and change nothing."""
        async with self._changes:
            try:
                settings = self._read()
                for name in _FIXED:
                    if getattr(settings, name) != getattr(self.settings, name):
                        raise ConfigurationError(
                            f"{name} cannot change while the proxy runs: restart it"
                        )
                fresh = await self._start(settings)
            except TwicesafeError as error:
                _log.error("not reloaded: %s", error)
                return
            old, self._workers, self.settings = self._workers, fresh, settings
            self._leaving |= old
            for process in old:
                process.end()
            _log.info("reloaded: %d workers", len(fresh))

    async def reports(self) -> list[WorkerReport]:
        """Reports of all workers that answer."""
        asked = [process.report() for process in self._workers | self._leaving]
        return [report for report in await asyncio.gather(*asked) if report is not None]

    def past(self) -> list[WorkerCount]:
        return self._past

    def _greeting(self, public: socket.socket, admin: socket.socket | None) -> Greeting:
        where = None if admin is None else shown(admin)
        settings = self.settings
        return Greeting(shown(public), settings.upstream, mask(settings.store), where)

    # -- workers ------------------------------------------------------------------------------

    async def _start(self, settings: ProxySettings) -> set[_Process]:
        made = [_Process(settings, self._public.fileno()) for _ in range(settings.workers)]
        begun = await asyncio.gather(*(process.begin() for process in made))
        if not all(begun):
            for process in made:
                process.end()
            raise ConfigurationError("a worker did not start; see the log for the reason")
        for process in made:
            self._spawn(self._watch(process))
        return set(made)

    async def _watch(self, process: _Process) -> None:
        status = await process.ended()
        self._past = added([*self._past, *process.last.counts])
        if process in self._leaving:
            self._leaving.discard(process)
            return
        pause = 0.05
        while not self._stopping.is_set():
            async with self._changes:
                if process not in self._workers:
                    return  # a reload has replaced it
                _log.error("a worker ended with status %s: starting another", status)
                another = _Process(self.settings, self._public.fileno())
                if await another.begin():
                    self._workers.discard(process)
                    self._workers.add(another)
                    self._spawn(self._watch(another))
                    return
            await asyncio.sleep(pause)
            pause = min(5.0, pause * 2)

    async def _stop(self) -> None:
        everyone = self._workers | self._leaving
        for process in everyone:
            process.end()
        seconds = self.settings.grace + _MARGIN
        await asyncio.gather(*(process.over(seconds) for process in everyone))

    # -- admin --------------------------------------------------------------------------------

    async def _serve_admin(self, listening: socket.socket) -> None:
        await server(Admin(self.reports, self.past, lambda: self.settings.workers)).serve(
            [listening]
        )

    def _spawn(self, work: object) -> None:
        task = asyncio.ensure_future(work)  # type: ignore[call-overload]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Process:
    """One worker process, as its supervisor sees it."""

    def __init__(self, settings: ProxySettings, fd: int) -> None:
        self._settings, self._fd = settings, fd
        self._process: asyncio.subprocess.Process | None = None
        self._asking = asyncio.Lock()
        self._awaited = 0
        """Reports that were asked for and have not come, also those that came too late."""
        self._is_ending = False
        self.last = WorkerReport()
        """The last report."""

    async def begin(self) -> bool:
        """True: it serves."""
        self._process = process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "twicesafe._proxy.worker",
            str(self._fd),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            pass_fds=(self._fd,),
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(msgspec.json.encode(self._settings) + b"\n")
        return bool(await process.stdout.readline())

    async def report(self) -> WorkerReport | None:
        """None: it does not answer."""
        process, line = self._process, b""
        if process is None or process.stdin is None or process.stdout is None:
            return None
        try:
            async with self._asking, asyncio.timeout(5):
                process.stdin.write(b"\n")
                self._awaited += 1
                while self._awaited:
                    line = await process.stdout.readline()
                    self._awaited -= 1
            self.last = msgspec.json.decode(line, type=WorkerReport)
        except (OSError, TimeoutError, msgspec.DecodeError):
            return None
        return self.last

    def end(self) -> None:
        if self._process is not None and self._process.returncode is None and not self._is_ending:
            self._is_ending = True
            self._process.terminate()

    async def ended(self) -> int:
        """Wait for its exit, read its last report, and return the exit status."""
        assert self._process is not None
        status = await self._process.wait()
        assert self._process.stdout is not None
        *_, line = [b"", *(await self._process.stdout.read()).splitlines()]
        with contextlib.suppress(msgspec.DecodeError):
            self.last = msgspec.json.decode(line, type=WorkerReport)
        return status

    async def over(self, seconds: float) -> None:
        """Wait for its exit; kill it if it takes longer than ``seconds``."""
        if self._process is None:
            return
        try:
            async with asyncio.timeout(seconds):
                await self._process.wait()
        except TimeoutError:
            _log.error("a worker did not exit in time and is killed")
            self._process.kill()
            await self._process.wait()
