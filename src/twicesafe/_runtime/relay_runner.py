"""Running a relay: performs what `_core.outbox.relay_lease` decides, in threads or on an event loop.

The publish loop and the lease keeper are two threads (or tasks), so a slow publisher does not lose
the leases. However a publish ends, its ticket is reported. `adapting` makes a publisher of either kind
fit.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError
from functools import partial
from typing import Any

from .._core.driving import drive, drive_async
from .._core.outbox.relay_lease import (
    CheckBroker,
    Collect,
    GiveUp,
    KeeperPause,
    Listen,
    Publish,
    RelayState,
    keep_slots,
)
from .._core.outbox.relay_publish import publish_pending
from ..errors import BrokerUnavailableError
from .adapting import InThreads
from .handler_threads import HandlerThreads

__all__ = ["AsyncRelayRunner", "RelayRunner"]

LISTEN_SLICE = 0.5
"""Longest time a thread listens at once, in seconds: `stop` may be noticed this much later."""


class RelayRunner:
    """A relay's two flows in threads; runs once."""

    def __init__(
        self,
        state: RelayState,
        publisher: Any,
        perform: Callable[[Any], Any],
        listen: Callable[[bytes, float], None],
    ) -> None:
        self._state = state
        self._perform = perform
        self._listen_for = listen
        self._ended: queue.SimpleQueue[tuple[int, Any] | None] = queue.SimpleQueue()
        self._over = threading.Event()
        self._publisher = publisher
        self._threads = (
            HandlerThreads(state.concurrency, "twicesafe-publish", daemon=True)
            if state.concurrency > 1
            else None
        )

    def run(self) -> None:
        """Run in this thread until `stop`."""
        keeper = threading.Thread(target=self._keep, name="twicesafe-outbox-leases", daemon=True)
        keeper.start()
        try:
            drive(publish_pending(self._state), self._do)
        finally:
            self._state.publishing_ended = True
            self._over.set()
            keeper.join()
            if self._threads is not None:
                self._threads.close()

    def stop(self) -> None:
        self._state.stopping = True
        self._ended.put(None)

    def _keep(self) -> None:
        drive(keep_slots(self._state), self._do)

    def _do(self, command: Any) -> Any:
        kind = type(command)
        if kind is Publish or kind is CheckBroker:
            if self._threads is None:
                self._take(command)
            else:
                self._threads.run([partial(self._take, command)])
            return None
        if kind is Collect:
            return self._collect(command.seconds)
        if kind is GiveUp:
            return None  # a thread cannot be ended
        if kind is Listen:
            self._listen_for(command.owner, min(command.seconds, LISTEN_SLICE))
            return None
        if kind is KeeperPause:
            self._over.wait(command.seconds)
            return None
        return self._perform(command)

    def _take(self, command: Publish | CheckBroker) -> None:
        answers: Any
        try:
            if type(command) is Publish:
                answers = _checked(self._publisher.publish(command.messages), command)
            else:
                answers = self._publisher.check()
        except BaseException as error:
            answers = _error_of(error)
            if _ends_the_program(error):
                raise
        finally:
            self._ended.put((command.ticket, answers))

    def _collect(self, seconds: float) -> list[tuple[int, Any]]:
        ended: list[tuple[int, Any] | None] = []
        try:
            ended.append(self._ended.get(timeout=seconds))
            while True:
                ended.append(self._ended.get_nowait())
        except queue.Empty:
            return [one for one in ended if one is not None]


class AsyncRelayRunner:
    """The same two flows as tasks of the running loop; runs once."""

    def __init__(
        self,
        state: RelayState,
        publisher: Any,
        perform: Callable[[Any], Coroutine[Any, Any, Any]],
        listen: Callable[[bytes, float], Coroutine[Any, Any, None]],
    ) -> None:
        self._state = state
        self._perform = perform
        self._listen_for = listen
        self._publisher = publisher
        self._under_way: dict[int, asyncio.Task[Any]] = {}
        self._given_up: set[asyncio.Task[Any]] = set()
        self._ended: list[tuple[int, Any]] = []
        self._news = asyncio.Event()
        self._over = asyncio.Event()

    async def run(self) -> None:
        """Run until `stop`. If cancelled, it drops running publishes, as a crash would."""
        keeper = asyncio.create_task(drive_async(keep_slots(self._state), self._do))
        try:
            await drive_async(publish_pending(self._state), self._do)
        finally:
            self._state.publishing_ended = True
            self._over.set()
            for task in (*self._under_way.values(), *self._given_up):
                task.cancel()
            await asyncio.wait({keeper, *self._under_way.values()})
        keeper.result()

    def stop(self) -> None:
        self._state.stopping = True
        self._news.set()

    def _do(self, command: Any) -> Any:
        kind = type(command)
        if kind is Publish or kind is CheckBroker:
            task = asyncio.create_task(self._take(command))
            self._under_way[command.ticket] = task
            task.add_done_callback(lambda ended: self._handle_answers(command.ticket, ended))
            return None
        if kind is Collect:
            return self._collect(command.seconds)
        if kind is GiveUp:
            return self._give_up(command.ticket)
        if kind is Listen:
            return self._listen(command)
        if kind is KeeperPause:
            return _until(self._over, command.seconds)
        return self._perform(command)

    async def _take(self, command: Publish | CheckBroker) -> Any:
        if type(command) is Publish:
            return _checked(await self._publisher.publish(command.messages), command)
        return await self._publisher.check()

    def _give_up(self, ticket: int) -> None:
        task = self._under_way.pop(ticket)
        self._given_up.add(task)
        if not isinstance(self._publisher, InThreads):  # a thread would not notice
            task.cancel()

    def _handle_answers(self, ticket: int, task: asyncio.Task[Any]) -> None:
        self._under_way.pop(ticket, None)
        self._given_up.discard(task)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        self._ended.append((ticket, task.result() if error is None else _error_of(error)))
        self._news.set()

    async def _collect(self, seconds: float) -> list[tuple[int, Any]]:
        if not self._ended:
            if not self._state.stopping:
                await _until(self._news, seconds)
            elif self._under_way:
                await asyncio.wait(self._under_way.values(), timeout=seconds)
            else:
                await asyncio.sleep(seconds)  # already stopping: this is a back-off
        if not self._state.stopping:
            self._news.clear()
        ended, self._ended = self._ended, []
        return ended

    async def _listen(self, command: Listen) -> None:
        listening = asyncio.create_task(self._listen_for(command.owner, command.seconds))
        news = asyncio.create_task(self._news.wait())
        try:
            await asyncio.wait({listening, news}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            news.cancel()
            if not listening.done():
                listening.cancel()
            await asyncio.wait({listening, news})
        if not listening.cancelled():
            listening.result()


def _checked(answers: Any, command: Publish) -> Any:
    """The answers, if there is exactly one per message; otherwise none of them counts."""
    count, wrong = len(command.messages), type(answers).__name__
    if isinstance(answers, Sequence) and len(answers) == count:
        strange = [one for one in answers if one is not None and not isinstance(one, Exception)]
        if not strange:
            return answers
        wrong = f"{type(strange[0]).__name__} for one of them"
    raise TypeError(
        f"publish() was given {count} messages and must return a list with None or an exception for each, "
        f"not {wrong}"
    )


def _ends_the_program(error: BaseException) -> bool:
    """Ctrl-C, or an exit in the main thread. In any other thread it would end the relay, without a word to anyone."""
    if isinstance(error, (Exception, asyncio.CancelledError)):
        return False
    return threading.current_thread() is threading.main_thread()


def _error_of(error: BaseException) -> Exception:
    """Why a publish ended early. A cancellation or an exit is not a message's fault."""
    if isinstance(error, Exception) and not isinstance(error, CancelledError):
        return error
    return BrokerUnavailableError(f"the publisher was interrupted by {type(error).__name__}")


async def _until(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
