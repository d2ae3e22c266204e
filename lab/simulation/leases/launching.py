"""The handlers of a batch: a bounded number at once; what finished is handed over together."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from twicesafe._core.commands import Detach, Invoke, Launch, NotStarted, Raised, Returned
from twicesafe._runtime.batch_jobs import interrupts

from .running import Run

if TYPE_CHECKING:
    from twicesafe._values.context import ActiveClaim

    from .flow_run import FlowRun

__all__ = ["Jobs"]


class Jobs:
    def __init__(self, flow_run: FlowRun, command: Launch) -> None:
        self._flow_run = flow_run
        self._todo = deque(command.jobs)
        self._concurrency = command.concurrency
        self._running: dict[int, Run | FlowRun | None] = {}
        self._found: list[tuple[int, Any]] = []
        self._resume: Callable[..., None] | None = None
        self._stopped = False
        self._due = False

    def ask(self, stop: bool, resume: Callable[..., None]) -> None:
        """The flow waits for finished jobs from now on."""
        self._resume = resume
        self._due = False
        if stop:
            self._stop()
        self._pump()
        if self._found or not (self._running or self._todo):
            self._flow_run.process.after(0.0, self._hand_over)

    def stop(self) -> None:
        """Cancelled from outside: start no more, cancel what can be, hand over all there is."""
        self._stop()
        if not self._running:
            self._hand_over()

    def claims(self) -> list[ActiveClaim | None]:
        """Of the handlers that run now."""
        return [work.claim for work in self._running.values() if isinstance(work, Run)]

    def _stop(self) -> None:
        self._stopped = True
        self._found += [(index, NotStarted()) for index, _ in self._todo]
        self._todo.clear()
        if self._flow_run.process.loop:
            for work in list(self._running.values()):
                if work is not None:
                    work.stop() if hasattr(work, "stop") else work.cancel()

    def _pump(self) -> None:
        while self._todo and len(self._running) < self._concurrency:
            index, job = self._todo.popleft()
            self._running[index] = None
            if isinstance(job, Invoke):
                reply = self._flow_run.start(job, partial(self._done, index))
                if reply is not None:
                    self._done(index, reply)
                elif index in self._running:
                    self._running[index] = self._flow_run._run
            else:
                self._branch(index, job)

    def _branch(self, index: int, job: Detach) -> None:
        process = self._flow_run.process

        def ended(flow_run: FlowRun, answer: Any) -> None:
            self._done(index, Returned(answer))

        rest = self._flow_run.branch(job, ended)
        self._running[index] = rest
        if not process.loop:
            late = Raised(TimeoutError("it goes on in its thread"))
            process.after(job.timeout, self._done, index, late)
        rest.go()

    def _done(self, index: int, reply: Any) -> None:
        if index not in self._running:
            return  # its time-out was handed over before
        work = self._running.pop(index)
        if not self._flow_run.alive:  # no process is left to record it
            if isinstance(work, Run) and work.claim is not None:
                self._flow_run.process.keeper.remove(work.claim)
            return
        self._found.append((index, reply))
        if self._stopped:
            if not self._running:
                self._hand_over()
            return
        if interrupts(reply):
            self._hand_over()
            return
        self._pump()
        if not self._running and not self._todo:
            self._hand_over()
        elif not self._due:
            self._due = True
            self._flow_run.process.after(0.05, self._hand_over)

    def _hand_over(self) -> None:
        if self._resume is None or not self._found or (self._stopped and self._running):
            return
        resume, self._resume = self._resume, None
        found, self._found = self._found, []
        resume(found)
