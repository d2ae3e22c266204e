"""The blocking etcd store: one gRPC channel per member, for all threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, ClassVar, Self, TypeVar

from ..._core.driving import drive
from ..._core.protocol import Request
from ..._forking import in_child
from ..._values.clocks import steady_wall_clock
from ..._values.drivers import require
from ...stores._base import Capabilities, Finding, Program, Store
from ...stores._batching import error_for_each
from .error_messages import timed_out
from .leases import Leases
from .messages import CALLS, STREAMS, message
from .programs import EtcdPrograms
from .routing import EtcdPause, Grant, MemberAttempt, Router
from .settings import Settings
from .wakeups import Waiter, WakeupListener

__all__ = ["BATCH", "CAPABILITIES", "EtcdStore", "Parts", "stubs"]

T = TypeVar("T")

CAPABILITIES = Capabilities(native_expiry=True, wake=True)

BATCH = 200
"""Requests of a batch that are on their way at once."""


class Parts:
    """What the blocking and the async store of one URL share."""

    def __init__(
        self,
        settings: Settings,
        leases: Leases | None = None,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self.settings = settings
        self.router = Router(settings)
        clock = clock or steady_wall_clock()  # for the times that people read
        self.programs = EtcdPrograms(settings.prefix, leases or Leases(), clock)


def stubs(channel: Any) -> dict[str, Any]:
    """Every call of the table on this channel, by its name."""
    return {
        name: channel.unary_unary(
            path, message(asked).SerializeToString if asked else None, message(told).FromString
        )
        for name, (path, asked, told) in CALLS.items()
    }


class EtcdStore(Store):
    """The blocking store, for threads."""

    capabilities: ClassVar[Capabilities] = CAPABILITIES

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.settings, self.router, self.programs = parts.settings, parts.router, parts.programs
        self.url = parts.settings.url
        self._lock = threading.Lock()
        self._channels: dict[int, tuple[Any, dict[str, Any]]] = {}
        self._abandoned: list[Any] = []
        self._grants: dict[int, Future[None]] = {}
        self.wakeups = WakeupListener(self._open_watch)
        in_child(self._renew)
        self._run(self.programs.check_access())

    @classmethod
    def open(cls, url: str) -> Self:
        require("grpc", "google.protobuf")
        return cls(Parts(Settings.of(url)))

    def _renew(self) -> None:
        """After a fork: the channels are the parent's. They stay referenced: to close them here would hang."""
        self._lock = threading.Lock()
        self._abandoned.append(self._channels)
        self._channels, self._grants = {}, {}

    def perform(self, request: Request) -> Any:
        return self._run(self.programs.perform(request))

    def perform_many(self, requests: Sequence[Request]) -> list[Any]:
        answers: list[Any] = []
        for start in range(0, len(requests), BATCH):
            part = requests[start : start + BATCH]
            self._run(self.programs.prepare(part))
            answers += self._together([self.programs.perform(request) for request in part])
        return answers

    def watch(self, id: bytes, seconds: float) -> None:  # noqa: A002
        until = time.monotonic() + seconds
        revision = self._run(self.programs.awaits(id))
        if not revision:
            return
        changed = threading.Event()
        waiter = Waiter(self.programs.keys.of(id)[1], revision, changed.set)
        self.wakeups.watch(waiter)
        try:
            changed.wait(max(0.0, until - time.monotonic()))
        finally:
            self.wakeups.unwatch(waiter)

    def doctor(self) -> list[Finding]:
        from .doctor import examine

        return self._run(examine(self.settings))

    def close(self) -> None:
        self.wakeups.close()
        with self._lock:
            channels, self._channels = self._channels, {}
        for channel, _ in channels.values():
            channel.close()

    # -- calls ----------------------------------------------------------------------------------

    def _run(self, program: Program[T]) -> T:
        return drive(self.router.route(program), self._attempt)

    def _attempt(self, step: MemberAttempt | Grant | EtcdPause) -> Any:
        if isinstance(step, EtcdPause):
            return time.sleep(step.seconds)
        if isinstance(step, Grant):
            return self._grant(step)
        channel, calls = self._connect(step.member)
        stub = calls[step.call.name]
        try:
            return stub(step.call.request, timeout=step.seconds, metadata=step.metadata)
        except Exception as error:
            self._disconnect(step.member, channel, error)
            raise

    def _grant(self, step: Grant) -> None:
        """One thread asks, the others wait for it."""
        with self._lock:
            flight = self._grants.get(step.seconds)
            leads = flight is None
            if flight is None:
                flight = self._grants[step.seconds] = Future()
        if not leads:
            error = flight.exception()
            if isinstance(error, Exception):
                raise error_for_each(error, 1)[0]
            return
        try:
            self._run(self.programs.grant(step))
        except BaseException as error:
            flight.set_exception(error)
            raise
        else:
            flight.set_result(None)
        finally:
            self._grants.pop(step.seconds, None)

    def _connect(self, member: int) -> tuple[Any, dict[str, Any]]:
        found = self._channels.get(member)
        if found is not None:
            return found
        import grpc

        with self._lock:
            found = self._channels.get(member)
            if found is None:
                channel = self.settings.channel(grpc, self.settings.members[member])
                found = self._channels[member] = channel, stubs(channel)
            return found

    def _disconnect(self, member: int, channel: Any, error: Exception) -> None:
        """After a time-out the next call gets a new connection. Calls that are on their way keep theirs."""
        if timed_out(error):
            with self._lock:
                if self._channels.get(member, (None,))[0] is channel:
                    del self._channels[member]

    def _together(self, programs: list[Program[Any]]) -> list[Any]:
        """Run all of them, with a call of each on its way at once; a failed one has its error."""
        answers: list[Any] = [None] * len(programs)
        waiting: list[tuple[int, Program[Any], Any]] = [
            (index, self.router.route(program), None) for index, program in enumerate(programs)
        ]
        while waiting:
            sent, pause = [], 0.0
            for index, steps, reply in waiting:
                try:
                    failed = isinstance(reply, Exception)
                    step = steps.throw(reply) if failed else steps.send(reply)
                    if isinstance(step, EtcdPause):
                        pause = max(pause, step.seconds)
                    sent.append((index, steps, self._begin(step)))
                except StopIteration as end:
                    answers[index] = end.value
                except Exception as error:
                    answers[index] = error
            waiting = [(index, steps, _reply(finish)) for index, steps, finish in sent]
            if pause:
                time.sleep(pause)  # one pause for all
        return answers

    def _begin(self, step: MemberAttempt | Grant | EtcdPause) -> Callable[[], Any]:
        """Send it; returns how to get the reply or its error. A pause is the caller's to make."""
        if isinstance(step, EtcdPause):
            return lambda: None
        if isinstance(step, Grant):
            return lambda: self._attempt(step)
        channel, calls = self._connect(step.member)
        future = calls[step.call.name].future(
            step.call.request, timeout=step.seconds, metadata=step.metadata
        )

        def finish() -> Any:
            try:
                return future.result()
            except Exception as error:
                self._disconnect(step.member, channel, error)
                raise

        return finish

    def _open_watch(self, requests: Any) -> Any:
        """The stream of all watches, at the present member."""
        path, asked, told = STREAMS["Watch"]
        channel, _ = self._connect(self.router.member)
        stream = channel.stream_stream(
            path, message(asked).SerializeToString, message(told).FromString
        )
        return stream(requests, metadata=self.router.metadata())


def _reply(finish: Callable[[], Any]) -> Any:
    """The reply, or its error."""
    try:
        return finish()
    except Exception as error:
        return error
