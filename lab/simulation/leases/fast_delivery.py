"""The fast path in a simulated process: the shipped functions, suspended at each command.

To the scheduler, and to mutants that tamper with commands, they look like a flow. A coroutine does by
itself; the blocking function has its own stack. Dropped, they end where they stand, as a flow does: the fast
path never catches what is not an `Exception`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from greenlet import getcurrent, greenlet

from twicesafe._core.call import Call
from twicesafe._core.commands import Invoke, Reply
from twicesafe._core.delivery import deliver_fast, deliver_fast_async
from twicesafe._values.context import ActiveClaim

__all__ = ["fast_delivery"]


def fast_delivery(call: Call, flight: Any, is_async: bool) -> Any:
    if is_async:
        return deliver_fast_async(call, flight, _Awaiting())
    return _Stack(lambda: deliver_fast(call, flight, _Suspending()))


class _Awaiting:
    async def perform(self, command: Any) -> Any:
        return await _Command(command)

    claim = record = perform

    async def invoke(self, claim: ActiveClaim, run: Callable[[], Any]) -> Reply:
        return await self.perform(Invoke(claim, run))


class _Command:
    def __init__(self, command: Any) -> None:
        self._command = command

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield self._command)


class _Stack:
    def __init__(self, work: Callable[[], Any]) -> None:
        self._stack = greenlet(lambda _: work())

    def send(self, reply: Any) -> Any:
        return self._next(self._stack.switch(reply))

    def throw(self, error: BaseException) -> Any:
        return self._next(self._stack.throw(error))

    def _next(self, command: Any) -> Any:
        if self._stack.dead:
            raise StopIteration(command)
        return command


class _Suspending:
    def perform(self, command: Any) -> Any:
        return getcurrent().parent.switch(command)

    claim = record = perform

    def invoke(self, claim: ActiveClaim, run: Callable[[], Any]) -> Reply:
        return self.perform(Invoke(claim, run))
