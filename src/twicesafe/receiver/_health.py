"""Collects what health is judged by: the store's answer, counts of records, and the receiver's activity."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, cast

from .._core.health import Health, Signs, Thresholds, judge, thresholds_of
from .._core.protocol import Browse, Page, Read, Survey
from .._core.sample_schedule import SampleSchedule
from .._core.searching import Question
from .._values.clocks import since_boot
from .._values.keys import Key
from .._values.records import Record, Stats
from ..errors import TwicesafeError
from ..stores._base import Finding
from ._operator_flows import sampled

if TYPE_CHECKING:
    from ..observers._activity import Activity
    from ._receiver import AsyncReceiver, Receiver

__all__ = [
    "Cached",
    "about_fallback",
    "fallback_answers",
    "fallback_answers_async",
    "is_reachable",
    "is_reachable_async",
    "judge_now",
    "judge_now_async",
    "take_signs",
    "take_signs_async",
]

_PROBE: Final = Key("probe", ("twicesafe", "health"), absolute=True)
"""A key that is never claimed: asking for its record writes nothing."""

PROBE_TIMEOUT: Final = 5.0
"""Seconds that an async probe waits for the store."""
COUNTS: Final = 30.0
"""Seconds for which a count is good enough for `Cached`."""


def judge_now(receiver: Receiver, thresholds: Thresholds | None) -> Health:
    return judge(take_signs(receiver), thresholds_of(thresholds))


async def judge_now_async(receiver: AsyncReceiver, thresholds: Thresholds | None) -> Health:
    return judge(await take_signs_async(receiver), thresholds_of(thresholds))


def take_signs(
    receiver: Receiver, stats: Stats | None = None, count: Callable[[], Stats] | None = None
) -> Signs:
    """`stats`: a count that is fresh enough; None: count now, with `count` or `receiver.sample`."""
    began = since_boot()
    try:
        receiver.record(_PROBE)
        took = since_boot() - began
        return _signs(receiver, took, (count or receiver.sample)() if stats is None else stats)
    except TwicesafeError as error:
        return _unanswered(receiver, str(error), fallback_answers(receiver))


async def take_signs_async(
    receiver: AsyncReceiver,
    stats: Stats | None = None,
    count: Callable[[], Awaitable[Stats]] | None = None,
) -> Signs:
    import asyncio

    from .._runtime.event_loop import running_loop

    running_loop()
    began = since_boot()
    try:
        async with asyncio.timeout(PROBE_TIMEOUT):
            await receiver.record(_PROBE)
        took = since_boot() - began
        counted = await (count or receiver.sample)() if stats is None else stats
        return _signs(receiver, took, counted)
    except (TwicesafeError, TimeoutError) as error:
        return _unanswered(receiver, _text(error), await fallback_answers_async(receiver))


def is_reachable(receiver: Receiver) -> str | None:
    """None: the store answers, or the fallback in its place; else why not."""
    try:
        receiver.record(_PROBE)
    except TwicesafeError as error:
        return None if fallback_answers(receiver) else str(error)
    return None


async def is_reachable_async(receiver: AsyncReceiver) -> str | None:
    import asyncio

    try:
        async with asyncio.timeout(PROBE_TIMEOUT):
            await receiver.record(_PROBE)
    except (TwicesafeError, TimeoutError) as error:
        return None if await fallback_answers_async(receiver) else _text(error)
    return None


def fallback_answers(receiver: Receiver) -> bool:
    """Also before the circuit opens: a service that is out of rotation makes no claim that could open it."""
    if receiver._fallback is None:
        return False
    try:
        receiver._fallback.perform(Read(_PROBE.id))
    except TwicesafeError:
        return False
    return True


async def fallback_answers_async(receiver: AsyncReceiver) -> bool:
    import asyncio

    if receiver._fallback is None:
        return False
    try:
        async with asyncio.timeout(PROBE_TIMEOUT):
            await receiver._fallback.perform(Read(_PROBE.id))
    except (TwicesafeError, TimeoutError):
        return False
    return True


def about_fallback(fallback: Any, answers: bool) -> list[Finding]:
    """The finding of a doctor about the fallback store, which nothing else needs until an outage."""
    if fallback is None:
        return []
    name = f"the fallback store {fallback.url} of the circuit breaker"
    if answers:
        return [Finding("ok", f"{name} answers")]
    remedy = "check its server and its URL: in an outage of the store, claims would be refused"
    return [Finding("warn", f"{name} does not answer", remedy)]


def _text(error: Exception) -> str:
    return str(error) or f"no answer within {PROBE_TIMEOUT:g} s"


def _signs(receiver: Any, took: float, stats: Stats) -> Signs:
    behind = sampled(stats).oldest_expired
    return Signs(answered_in=took, stats=stats, oldest_expired=behind, **_own(receiver))


def _unanswered(receiver: Any, error: str, fallback_answers: bool) -> Signs:
    own = _own(receiver)
    return Signs(answered_in=None, error=error, fallback_answers=fallback_answers, **own)


def _own(receiver: Any) -> dict[str, Any]:
    """What the receiver knows without a request to the store."""
    activity: Activity | None = receiver._activity
    guard = receiver._runtime.guard
    return {
        "recent": None if activity is None else activity.recent(),
        "breaker": "" if guard is None else guard.state.value,
        "falls_back": receiver._fallback is not None,
    }


class Cached:
    """Health for probes that ask often: the records are counted at a bounded pace."""

    def __init__(
        self, receiver: Receiver | AsyncReceiver, thresholds: Thresholds, newest: int = 0
    ) -> None:
        """``newest``: with each count, look at this many of the newest records, too."""
        self._receiver, self._thresholds = receiver, thresholds
        self._asks: list[Question] = [Survey()]
        if newest:
            self._asks.append(Browse(newest))
        self._samples = SampleSchedule(COUNTS, since_boot)
        self.stats: Stats | None = None
        """The last count."""
        self.newest: list[Record] = []
        """The newest records at the last count."""
        self._counting = threading.Lock()

    def health(self) -> Health:
        with self._counting:  # one probe counts, the others wait for it
            return self._judged(self._take())

    def _take(self) -> Signs:
        receiver = cast("Receiver", self._receiver)
        if not self._samples.is_due():
            return take_signs(receiver, self.stats, self._count)
        with self._samples.measured():
            return take_signs(receiver, count=self._count)

    @contextmanager
    def joined(self) -> Iterator[list[Question]]:
        """The questions of a count, if one is due, to ask with others of the same screen; then call `counted`."""
        if not self._samples.is_due():
            yield []
            return
        with self._samples.measured():
            yield self._asks

    def _count(self) -> Stats:
        receiver = cast("Receiver", self._receiver)
        return self.counted(*receiver._runtime.run(receiver._together(*self._asks)))

    async def _count_async(self) -> Stats:
        receiver = cast("AsyncReceiver", self._receiver)
        return self.counted(*await receiver._runtime.run(receiver._together(*self._asks)))

    def counted(self, stats: Stats, newest: Page | None = None) -> Stats:
        """Take the answers to the questions of a count."""
        self.stats = stats
        self.newest = [] if newest is None else newest.view()
        return self._receiver._tell_sample(stats)

    async def health_async(self) -> Health:
        receiver = cast("AsyncReceiver", self._receiver)
        if not self._samples.is_due():
            return self._judged(await take_signs_async(receiver, self.stats, self._count_async))
        with self._samples.measured():
            return self._judged(await take_signs_async(receiver, count=self._count_async))

    def _judged(self, signs: Signs) -> Health:
        self.stats = signs.stats or self.stats
        return judge(signs, self._thresholds)
