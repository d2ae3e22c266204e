"""Maintenance: automatic sweeping on a timer; one node per interval runs it.

    upkeep = receiver.maintain(every=300)     # a daemon thread; AsyncReceiver: a task
    upkeep.stop()                             # or let receiver.close() do it

A round removes records that are past their retention. It also parks work that was claimed long ago
and never finished or redelivered, so that an operator notices it. If the receiver has observers,
the round counts the records for their gauges. Each round has a key. The node that wins the claim
does the round; the other nodes get its report, with these numbers, as a replay. A round that fails
is logged, and the timer continues. If the store cannot keep up, the sweep uses smaller batches
(`_core.operations.sweep`). The timer does not keep a receiver alive: it stops when the last
receiver that shares its runtime has been garbage-collected.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from .._core.sample_schedule import SampleSchedule
from .._values.clocks import since_boot
from .._values.keys import Key
from .._values.policy import Backoff, Policy
from .._values.settings import Duration, expect, seconds
from ..errors import StillInProgressError, TwicesafeError
from ..events import StoreSampled
from ._base import ReceiverBase
from ._operator_flows import sampled

if TYPE_CHECKING:
    from .._values.outcomes import Outcome
    from ._receiver import AsyncReceiver, Receiver

__all__ = ["AsyncMaintenance", "Maintenance", "RoundTimer", "sweep_round"]

R = TypeVar("R", bound=ReceiverBase)

_log = logging.getLogger("twicesafe")


class RoundTimer:
    """The time and the key of the next round."""

    def __init__(
        self, every: Duration, limit: int | None, park_after: Duration | None = None
    ) -> None:
        self.every = seconds(every, "every")
        expect(self.every >= 0.05, "every", every, "use at least 0.05 seconds")
        self.limit = limit
        self.samples = SampleSchedule(0.0, since_boot)
        self._park_after = None if park_after is None else seconds(park_after, "park_after")
        self.policy = Policy(
            in_flight="reject",
            retention=max(60.0, 2 * self.every),
            backoff=Backoff(first=0),
            max_attempts=1_000_000,
        )

    def number(self) -> int:
        # If the nodes' wall clocks differ, a round may be swept twice, which is harmless.
        return int(time.time() / self.every)

    def key(self) -> Key:
        # Absolute: all nodes of this store share a round, even if their receivers have different scopes.
        return Key(f"{self.number()}", ("twicesafe", "maintenance"), absolute=True)

    def park_after(self) -> float | None:
        """None in eleven of twelve rounds: searching for stuck work reads all records once more."""
        return self._park_after if self.number() % 12 == 0 else None


def sweep_round(receiver: Receiver, timer: RoundTimer) -> Outcome[dict[str, Any]] | None:
    """This round's report, new or replayed; None: another node is running it."""
    rounds = receiver.options(policy=timer.policy, fingerprint=False)
    try:
        outcome = rounds.process(timer.key(), _upkeep, receiver, timer)
    except StillInProgressError:
        return None
    _tell_sample(receiver, outcome.value)
    return outcome


class Maintenance:
    """The maintenance thread, made by `Receiver.maintain`."""

    def __init__(
        self, receiver: Receiver, every: Duration, limit: int | None, park_after: Duration | None
    ) -> None:
        self._timer = RoundTimer(every, limit, park_after)
        self._receiver = _held_by_others(receiver)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="twicesafe-upkeep", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop; a running round is finished first."""
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def round(self) -> bool:
        """Run one round now; True: this node did it."""
        receiver = self._receiver()
        if receiver is None:
            self._stopped.set()
            return False
        try:
            outcome = sweep_round(receiver, self._timer)
        except Exception as error:
            _log_failed(error)
            return False
        return outcome is not None and not outcome.replayed

    def _run(self) -> None:
        while not self._stopped.wait(self._timer.every):
            self.round()


class AsyncMaintenance:
    """Async version of `Maintenance`, made by `AsyncReceiver.maintain`."""

    def __init__(
        self,
        receiver: AsyncReceiver,
        every: Duration,
        limit: int | None,
        park_after: Duration | None,
    ) -> None:
        from .._runtime.event_loop import running_loop

        self._timer = RoundTimer(every, limit, park_after)
        self._receiver = _held_by_others(receiver)
        self._task = running_loop().create_task(self._run(), name="twicesafe-upkeep")

    async def stop(self) -> None:
        """Stop; a running round is cancelled."""
        import asyncio

        self._task.cancel()
        await asyncio.wait({self._task})

    async def round(self) -> bool:
        """Run one round now; True: this node did it."""
        receiver = self._receiver()
        if receiver is None:
            return False
        rounds = receiver.options(policy=self._timer.policy, fingerprint=False)
        try:
            outcome = await rounds.process(self._timer.key(), _upkeep_async, receiver, self._timer)
            _tell_sample(receiver, outcome.value)
        except StillInProgressError:
            return False  # another node is running it
        except Exception as error:
            _log_failed(error)
            return False
        return not outcome.replayed

    async def _run(self) -> None:
        import asyncio

        while True:
            await asyncio.sleep(self._timer.every)
            if self._receiver() is None:
                return
            await self.round()


def _held_by_others(receiver: R) -> Callable[[], R | None]:
    """A receiver with these settings while its runtime is in use; then None.

    The runtime counts, not the receiver: receivers made by `options` are often temporary.
    """
    settings, runtime = copy(receiver), weakref.ref(receiver._runtime)
    del settings._runtime, settings.store

    def again() -> R | None:
        alive = runtime()
        if alive is None:
            return None
        other = copy(settings)
        other._runtime, other.store = alive, alive.store
        return other

    return again


def _log_failed(error: Exception) -> None:
    foreign = not isinstance(error, TwicesafeError)  # not our own error: log its traceback
    _log.warning("a round of maintenance failed: %s", error, exc_info=foreign)


def _upkeep(receiver: Receiver, timer: RoundTimer) -> dict[str, Any]:
    report, park_after = receiver.sweep(timer.limit), timer.park_after()
    parked = 0 if park_after is None else len(receiver.park_stuck(park_after))
    done = {"removed": report.removed, "examined": report.examined, "parked": parked}
    if receiver._observed and timer.samples.is_due():
        with timer.samples.measured():
            done |= _numbers(sampled(receiver.stats()))
    return done


async def _upkeep_async(receiver: AsyncReceiver, timer: RoundTimer) -> dict[str, Any]:
    report, park_after = await receiver.sweep(timer.limit), timer.park_after()
    parked = 0 if park_after is None else len(await receiver.park_stuck(park_after))
    done = {"removed": report.removed, "examined": report.examined, "parked": parked}
    if receiver._observed and timer.samples.is_due():
        with timer.samples.measured():
            done |= _numbers(sampled(await receiver.stats()))
    return done


def _numbers(sample: StoreSampled) -> dict[str, Any]:
    """As plain data, which is what a report keeps."""
    return {"sample": msgspec.to_builtins(sample)}


def _tell_sample(receiver: ReceiverBase, report: dict[str, Any]) -> None:
    if "sample" in report:
        receiver._notify(msgspec.convert(report["sample"], StoreSampled))
