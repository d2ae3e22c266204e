"""One round of completing durable runs: find what is due, and run it.

    receiver.complete_abandoned()               # once: everything that is due now

`receiver.completer()` does it again and again (`_completer`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

from .._core.durable import run_operations
from .._core.durable.run_requests import OVERDUE, DueRun
from .._forking import WithoutChildren
from .._values.closed import require_open
from .._values.context import key_scope
from .._values.settings import Duration
from ..errors import CorruptRecordError
from ._base import ReceiverBase
from ._batches import checked_concurrency
from ._completer import AsyncCompleter, Completer, CompletionReport

if TYPE_CHECKING:
    import asyncio

    from ._receiver import AsyncReceiver, Receiver

__all__ = ["AsyncCompletes", "Completes"]

ROUND: Final = 1000
"""Runs that one round finds, at most."""


def _call_of(receiver: ReceiverBase, run: DueRun) -> tuple[Any, Any, str]:
    """The durable function and the call of a run, or why there is none."""
    durable = receiver._durable_of(run.function, run.key)
    if durable is None:
        return None, None, f"no durable function is named {run.function}"
    try:
        return durable, durable._resumed(run), ""
    except CorruptRecordError as error:
        return None, None, str(error)


def _has_begun(call: Any) -> bool:
    return call is not None and call.durable.state is not None


class Completes(ReceiverBase):
    """What `Receiver` does with due runs."""

    def complete_abandoned(self, limit: int = ROUND, *, concurrency: int = 1) -> CompletionReport:
        """Run what is due now: at most ``limit`` runs, ``concurrency`` of them at once, in threads."""
        return self._complete_round(limit, concurrency, CompletionReport())

    def _complete_round(
        self,
        limit: int,
        concurrency: int,
        report: CompletionReport,
        stops: Callable[[], bool] = lambda: False,
    ) -> CompletionReport:
        checked_concurrency(concurrency)
        due = self._find_due(limit)
        if concurrency == 1 or len(due) < 2:
            for run in due:
                self._complete(run, report, stops)
        else:
            from concurrent.futures import ThreadPoolExecutor

            with ThreadPoolExecutor(concurrency, "twicesafe-completer") as pool:
                for ended in [pool.submit(self._complete, run, report, stops) for run in due]:
                    ended.result()
        return report

    def _find_due(self, limit: int) -> list[DueRun]:
        find = run_operations.find_due(limit, self._resolved.lease_ms, self._durables)
        return self._runtime.run(find)  # type: ignore[no-any-return]

    def _complete(self, run: DueRun, report: CompletionReport, stops: Callable[[], bool]) -> None:
        """If `stops()`, it starts no more runs. Runs that it found and did not start are found
        again after a lease.
        """
        if stops():
            return
        call: Any = None
        try:
            durable, call, why = _call_of(self, run)
            if call is None and run.overdue < OVERDUE:
                report.leave(run, why)
                return
            if call is None:
                flow = run_operations.park_unusable(run, self._resolved, why)
                report.count_unusable(run, why, self._runtime.run(flow))
                return
            with WithoutChildren(), key_scope(*call.durable.around):
                durable._answer(call)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # an error of the function: the other runs continue
            report.count(error, _has_begun(call))
        else:
            report.count(None)

    def completer(self, every: Duration = 1.0, *, concurrency: int = 8) -> Completer:
        """Run what is due every ``every`` seconds, until `Completer.stop` or `close`."""
        require_open(self._runtime.store)
        return Completer(cast("Receiver", self), every, concurrency)


class AsyncCompletes(ReceiverBase):
    """What `AsyncReceiver` does with due runs."""

    async def complete_abandoned(
        self, limit: int = ROUND, *, concurrency: int = 1
    ) -> CompletionReport:
        """Run what is due now: at most ``limit`` runs, ``concurrency`` of them at once, in tasks."""
        return await self._complete_round(limit, concurrency, CompletionReport())

    async def _complete_round(
        self,
        limit: int,
        concurrency: int,
        report: CompletionReport,
        stops: Callable[[], bool] = lambda: False,
    ) -> CompletionReport:
        import asyncio

        slots = asyncio.Semaphore(checked_concurrency(concurrency))
        due = await self._find_due(limit)  # outside the group, which would wrap its error
        async with asyncio.TaskGroup() as group:
            for run in due:
                group.create_task(self._complete(run, report, stops, slots))
        return report

    async def _find_due(self, limit: int) -> list[DueRun]:
        find = run_operations.find_due(limit, self._resolved.lease_ms, self._durables)
        return await self._runtime.run(find)  # type: ignore[no-any-return]

    async def _complete(
        self,
        run: DueRun,
        report: CompletionReport,
        stops: Callable[[], bool],
        slots: asyncio.Semaphore,
    ) -> None:
        """If `stops()`, it starts no more runs. Runs that it found and did not start are found
        again after a lease.
        """
        async with slots:
            if not stops():
                await self._complete_one(run, report)

    async def _complete_one(self, run: DueRun, report: CompletionReport) -> None:
        import asyncio

        call: Any = None
        try:
            durable, call, why = _call_of(self, run)
            if call is None and run.overdue < OVERDUE:
                report.leave(run, why)
                return
            if call is None:
                flow = run_operations.park_unusable(run, self._resolved, why)
                report.count_unusable(run, why, await self._runtime.run(flow))
                return
            with WithoutChildren(), key_scope(*call.durable.around):
                await durable._answer(call)
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # an error of the function: the other runs continue
            report.count(error, _has_begun(call))
        else:
            report.count(None)

    def completer(self, every: Duration = 1.0, *, concurrency: int = 8) -> AsyncCompleter:
        """Run what is due every ``every`` seconds, until `AsyncCompleter.stop` or `close`."""
        require_open(self._runtime.store)
        return AsyncCompleter(cast("AsyncReceiver", self), every, concurrency)
