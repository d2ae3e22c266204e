"""Group commit for threads: who waits for the one writing connection travels with whoever gets it.

Send what has gathered, gather while it flies. There is no timer, so a lone call pays no delay;
under load, fifty threads share one transaction.

An interrupt (Ctrl-C, an exception sent into a thread) may come after any call in here, also inside
a `finally`. So what must never be lost, the lane itself, is only ever held by a plain `with lock:`,
which has no such gap, and everything else is a hint: a bell that nobody rang, a ticket that nobody
put back in line costs its caller a moment (`PATIENCE`), after which it looks for itself.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

from .._core.protocol import Request

__all__ = ["GroupCommit", "goes_alone"]

T = TypeVar("T")

PATIENCE: Final = 0.05
_UNANSWERED: Final = object()


def goes_alone(request: Any) -> bool:
    """Is this request not to be joined with others? It failed in company, perhaps by its own fault."""
    return getattr(request, "alone", False)


class _Ticket:
    """One caller in line. Its bell rings when it is answered, or had better look for itself."""

    __slots__ = ("answer", "bell", "request")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.answer: Any = _UNANSWERED
        self.bell = threading.Lock()
        self.bell.acquire()

    def ring(self) -> None:
        with suppress(RuntimeError):  # it has been rung, and not been heard yet
            self.bell.release()


class GroupCommit:
    """One at a time. Whoever gets the lane works for all who have gathered; the next one leads then.

    The answered go their way at once: they do not wait for the next write to end. An answer that is
    an exception is raised to its caller alone.
    """

    def __init__(
        self,
        perform_one: Callable[[Any], Any],
        perform_all: Callable[[list[Any]], list[Any]],
    ) -> None:
        self._perform_one = perform_one
        self._perform_all = perform_all
        self._taken = threading.Lock()
        self._line: deque[_Ticket] = deque()

    @property
    def busy(self) -> bool:
        return self._taken.locked()

    def perform(self, request: Request) -> Any:
        if self._line or self._taken.locked():
            return self._in_company(_Ticket(request))
        try:
            with self._taken:
                return self._perform_one(request)
        finally:
            self._ring()

    def alone(self, work: Callable[[], T]) -> T:
        """The lane without a request: for what is no exchange."""
        try:
            with self._taken:
                return work()
        finally:
            self._ring()

    def hold(self, patience: float) -> bool:
        """Take the lane and keep it, before a fork. False: it was not free in time."""
        return self._taken.acquire(timeout=patience)

    def let_go(self) -> None:
        self._taken.release()
        self._ring()

    def _in_company(self, ticket: _Ticket) -> Any:
        self._line.append(ticket)
        patient = True
        try:
            while ticket.answer is _UNANSWERED:
                if self._taken.locked() or (patient and not self._leads(ticket)):
                    patient = ticket.bell.acquire(timeout=PATIENCE)
                    continue
                with self._taken:
                    if ticket.answer is _UNANSWERED:
                        self._lead(ticket)
                self._ring()
        except BaseException:
            # Interrupted. Whoever has taken our request along performs it, and nobody is told: what
            # we send next about the same key, to give it back, stands behind it in the same line.
            with suppress(ValueError):
                self._line.remove(ticket)
            raise
        if isinstance(ticket.answer, Exception):
            raise ticket.answer
        return ticket.answer

    def _leads(self, ticket: _Ticket) -> bool:
        """The first in line does: while it wakes up, more gather than if any newcomer rushed in."""
        try:
            return self._line[0] is ticket
        except IndexError:
            return False  # somebody has just taken everyone along

    def _lead(self, mine: _Ticket) -> None:
        """Answer everybody in line. If we break off here they ask again: requests bear repeating."""
        tickets: list[_Ticket] = []
        while self._line:
            tickets.append(self._line.popleft())
        if mine not in tickets:  # a leader who took it along was interrupted
            tickets.insert(0, mine)
        if len(tickets) == 1:
            mine.answer = self._perform_one(mine.request)
            return
        together = [each for each in tickets if not goes_alone(each.request)]
        if together:
            answers = self._perform_all([each.request for each in together])
            for each, answer in zip(together, answers, strict=True):
                self._answer(each, answer, mine)
        for each in tickets:
            if each not in together:
                self._answer(each, self._answer_to(each.request), mine)

    def _answer_to(self, request: Request) -> Any:
        try:
            return self._perform_one(request)
        except Exception as error:
            return error

    def _answer(self, ticket: _Ticket, answer: Any, mine: _Ticket) -> None:
        ticket.answer = answer
        if ticket is not mine:
            ticket.ring()

    def _ring(self) -> None:
        """The lane is free: the first in line may lead, if no newcomer has taken it along."""
        if self._line:
            with suppress(IndexError):  # they have just been taken along
                self._line[0].ring()
