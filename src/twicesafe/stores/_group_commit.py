"""Group commit for threads: writers that wait for the one connection share one transaction.

While one transaction runs, new requests queue up for the next one. There is no timer, so a single
call has no delay; under load, fifty threads share one transaction.

Answered callers wake up one after the other: each wakes the next. If all were woken at once, they would
compete for the interpreter's lock, which costs more than their work. No transaction starts until the last
one is awake. The others may return with their next request before that, and share that transaction too.

An interrupt (Ctrl-C, an exception sent into a thread) may come after any call in here, even in a
`finally`. So the lock is only held by a plain `with lock:`, which has no gap for it. Everything else
is a hint: a missed notification, a chain of wake-ups that ended early, or a ticket that is missing in the
queue delays its caller by at most `LONGEST_WAIT`. Then the caller checks for itself.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

from .._core.protocol import Request
from .._values.wakeup import Wakeup

__all__ = ["GroupCommit", "goes_alone"]

T = TypeVar("T")

LONGEST_WAIT: Final = 0.05
_UNANSWERED: Final = object()


def goes_alone(request: Any) -> bool:
    """Whether to run this request alone: it failed in a batch, and may be the cause."""
    return getattr(request, "alone", False)


class _Ticket(Wakeup):
    """One waiting caller. It is woken when it is answered, or should check for itself."""

    __slots__ = ("answer", "following", "request")

    def __init__(self, request: Request) -> None:
        super().__init__()
        self.request = request
        self.answer: Any = _UNANSWERED
        self.following: _Ticket | None = None
        """Answered in the same transaction, and woken by this one's caller."""


class GroupCommit:
    """One transaction at a time. The thread that gets the lock performs all queued requests.

    Answered callers return at once: they do not wait for the next transaction. An exception as the
    answer is raised to its own caller only.
    """

    def __init__(
        self,
        perform_one: Callable[[Any], Any],
        perform_all: Callable[[list[Any]], list[Any]],
    ) -> None:
        self._perform_one = perform_one
        self._perform_all = perform_all
        self._taken = threading.Lock()
        self.is_busy = self._taken.locked
        self._line: deque[_Ticket] = deque()
        self._last_to_wake: _Ticket | None = None
        """The end of the chain of wake-ups, until its caller is awake."""

    def perform(self, request: Request) -> Any:
        if self._line or self._taken.locked() or self._last_to_wake is not None:
            return self._in_batch(_Ticket(request))
        try:
            with self._taken:
                return self._perform_one(request)
        finally:
            if self._line:
                self._wake()

    def alone(self, work: Callable[..., T], *args: Any) -> T:
        """Run other work under the lock."""
        try:
            with self._taken:
                return work(*args)
        finally:
            if self._line:
                self._wake()

    def hold(self, seconds: float) -> bool:
        """Take and keep the lock, before a fork. False: it was not free in time."""
        return self._taken.acquire(timeout=seconds)

    def let_go(self) -> None:
        self._taken.release()
        self._wake()

    def _in_batch(self, ticket: _Ticket) -> Any:
        self._line.append(ticket)
        was_woken = True
        try:
            while ticket.answer is _UNANSWERED:
                if self._taken.locked() or (was_woken and not self._leads(ticket)):
                    was_woken = ticket.wait(LONGEST_WAIT)
                    continue
                with self._taken:
                    if ticket.answer is _UNANSWERED:
                        self._lead(ticket)
        except BaseException:
            # Interrupted. Another thread may still perform our request. That is safe: the release
            # that we send next for the same key is queued behind it.
            with suppress(ValueError):
                self._line.remove(ticket)
            raise
        finally:
            self._wake_following(ticket)
        if isinstance(ticket.answer, Exception):
            raise ticket.answer
        return ticket.answer

    def _leads(self, ticket: _Ticket) -> bool:
        """The first in the queue leads, when all answered callers are awake."""
        try:
            return self._last_to_wake is None and self._line[0] is ticket
        except IndexError:
            return False  # another leader has just taken the whole queue

    def _lead(self, mine: _Ticket) -> None:
        """Answer all queued requests. If we are interrupted, they are retried: that is safe."""
        self._last_to_wake = None  # if we did not wait for it, it was interrupted
        tickets: list[_Ticket] = []
        while self._line:
            tickets.append(self._line.popleft())
        if mine not in tickets:  # an interrupted leader had taken it
            tickets.insert(0, mine)
        if len(tickets) == 1:
            mine.answer = self._perform_one(mine.request)
            return
        together = [each for each in tickets if not goes_alone(each.request)]
        if together:
            answers = self._perform_all([each.request for each in together])
            for each, answer in zip(together, answers, strict=True):
                each.answer = answer
        for each in tickets:
            if each not in together:
                each.answer = self._answer_to(each.request)
        last = mine
        for each in tickets:
            if each is not mine:
                last.following = last = each
        self._last_to_wake = last

    def _answer_to(self, request: Request) -> Any:
        try:
            return self._perform_one(request)
        except Exception as error:
            return error

    def _wake_following(self, ticket: _Ticket) -> None:
        if ticket.following is not None:
            ticket.following.set()
            return
        if self._last_to_wake is ticket:
            self._last_to_wake = None
        if self._line:
            self._wake()

    def _wake(self) -> None:
        """The lock is free: wake the first in the queue, unless another leader took it."""
        with suppress(IndexError):  # there is none, or another leader has just taken them
            self._line[0].set()
