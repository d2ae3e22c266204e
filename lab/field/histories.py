"""Recorded histories (C10): many clients, few keys, cut connections; then `linearity` judges them.

Half of the clients are threads on the blocking store, half are tasks on the awaited one, whose calls
are joined into batches on the way: both must look like one atomic store. Leases are over at once or
not at all, so that the model needs no clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from twicesafe import Key
from twicesafe._core.protocol import (
    Abandon,
    Ack,
    ClaimRequest,
    Complete,
    Fail,
    Read,
    Release,
    Renew,
    Resolve,
    Verdict,
)
from twicesafe.errors import StoreUnavailableError
from twicesafe.stores._urls import open_async_store, open_store

from .drivers import sturdy, through
from .linearity import UNDECIDED, UNKNOWN, Call, check, partition
from .proxy import Fault, Proxy
from .trial import KEYED, SERVERS, Trial, trial

__all__ = ["Recorder", "judge", "judge_all", "linearisable", "record"]

HOUR: Final = 3_600_000

REPEATS: Final = {"postgresql": 0, "mysql": 1, "redis": 2, "dynamodb": 2, "etcd": 4}
"""How often a store asks again by itself after a cut; PostgreSQL's leave that to the exchange."""

ACTS: Final = (Release, Resolve)
"""An operator's words are never repeated."""

_owners = itertools.count(1)


class Client:
    """Draws what to ask next from what it knows: its claims, the live ones and the lost ones."""

    def __init__(self, number: int, rng: random.Random, keys: list[Key]) -> None:
        self.number, self.rng, self.keys = number, rng, keys
        self.mine: list[Any] = []
        """(key id, owner, fence) of every claim that it ever won."""
        self.unanswered: list[ClaimRequest] = []

    def draw(self) -> Any:
        rng = self.rng
        key = rng.choice(self.keys)
        what = rng.random()
        if self.unanswered and what < 0.5:
            return self.unanswered.pop()
        if what < 0.4 or not self.mine:
            owner = b"history.%08d" % next(_owners)
            return ClaimRequest(key, owner, rng.choice((0, 0, HOUR)), 4, rng.random() < 0.1)
        if what < 0.5:
            return Read(key.id)
        if what < 0.58:
            return Release(key.id, "lab", "", HOUR, force=rng.random() < 0.7)
        if what < 0.6:
            return Resolve(key.id, "lab", "", HOUR, b"by hand %d" % self.number)
        id_, owner, fence = rng.choice(self.mine[-4:])
        if what < 0.7:
            return Renew(id_, owner, fence, HOUR)
        if what < 0.85:
            return Complete(id_, owner, fence, HOUR, b"result %d" % rng.randrange(10**6))
        if what < 0.95:
            return Fail(id_, owner, fence, 0, 4, HOUR, "E", hold=rng.random() < 0.1)
        return Abandon(id_, owner, HOUR)

    def learn(self, request: Any, answer: Any) -> None:
        if isinstance(request, ClaimRequest):
            if answer is UNKNOWN:
                self.unanswered.append(request)
            elif answer.verdict is Verdict.WON:
                self.mine.append((request.id, request.owner, answer.fence))


class Recorder:
    """Notes who asked what when. ``repeats``: how often the store may send a call again by itself."""

    def __init__(self, repeats: int) -> None:
        self._repeats = repeats
        self.calls: list[Call] = []

    def begin(self, client: Client, request: Any) -> tuple[Call, int]:
        return Call(client.number, request, time.perf_counter()), self.faults()

    def end(self, client: Client, call: Call, answer: Any, faults: int) -> None:
        if answer is not UNKNOWN:
            call.returned, call.answer = time.perf_counter(), answer
        self.calls.append(call)
        if not isinstance(call.request, ACTS):
            # Those whose reply was lost, and that were sent again, happened too, some time.
            for _ in range(min(self._repeats, self.faults() - faults)):
                self.calls.append(Call(client.number, call.request, call.called))
        client.learn(call.request, answer)

    def faults(self) -> int:
        """Replies that may have been lost so far."""
        return 0


class CuttingRecorder(Recorder):
    """Cuts a reply now and then."""

    def __init__(self, repeats: int, proxy: Proxy, rng: random.Random) -> None:
        super().__init__(repeats)
        self._proxy, self._rng = proxy, rng

    def begin(self, client: Client, request: Any) -> tuple[Call, int]:
        begun = super().begin(client, request)
        if self._rng.random() < (0.02 if self._repeats else 0.04):
            self._proxy.arm(Fault("reply", self._rng.randrange(40), "close"))
        return begun

    def faults(self) -> int:
        return self._proxy.faults


@contextmanager
def _place(t: Trial) -> Iterator[tuple[str, Proxy | None]]:
    if t.engine == "sqlite":
        with tempfile.TemporaryDirectory(prefix="twicesafe-lab-") as folder:
            yield f"sqlite:///{Path(folder) / 'keys.db'}", None
        return
    server = sturdy(t.engine)
    with server.fresh() as url, Proxy(server.port) as proxy:
        try:
            yield through(url, proxy.port), proxy
        finally:
            t.expect(server.running, "the server died")


def record(url: str, recorder: Recorder, rng: random.Random, clients: int, operations: int) -> None:
    """One history on fresh keys."""
    keys = [Key(f"h{rng.randrange(10**12)}-{number}") for number in range(max(2, operations // 60))]
    crowd = [Client(number, random.Random(rng.random()), keys) for number in range(clients)]
    each = operations // clients
    store = open_store(url)

    def in_thread(client: Client) -> None:
        for _ in range(each):
            call, faults = recorder.begin(client, client.draw())
            answer: Any = UNKNOWN
            with contextlib.suppress(StoreUnavailableError):
                answer = store.perform(call.request)
            recorder.end(client, call, answer, faults)

    async def in_task(client: Client, awaited: Any) -> None:
        for _ in range(each):
            call, faults = recorder.begin(client, client.draw())
            answer: Any = UNKNOWN
            with contextlib.suppress(StoreUnavailableError):
                answer = await awaited.perform(call.request)
            recorder.end(client, call, answer, faults)

    async def in_tasks(some: list[Client]) -> None:
        awaited = open_async_store(url)
        try:
            await asyncio.gather(*(in_task(client, awaited) for client in some))
        finally:
            await awaited.close()

    half = clients // 2
    with ThreadPoolExecutor(clients) as pool:
        try:
            work = [pool.submit(in_thread, client) for client in crowd[:half]]
            work.append(pool.submit(asyncio.run, in_tasks(crowd[half:])))
            for one in work:
                one.result()
        finally:
            store.close()


def _is_locked(answer: Any) -> bool:
    return answer is Ack.LOCKED or getattr(answer, "locked", False)


@trial("linearisable histories", "C10", "histories", ("sqlite", *SERVERS, *KEYED))
def linearisable(t: Trial) -> None:
    """Concurrent clients work over connections that are cut. Could a single atomic store have produced
    every history?"""
    rng = t.rng
    clients = 10
    operations = t.size(200, 500)
    with _place(t) as (url, proxy):
        for number in range(t.size(6, 200)):
            recorder = _recorder(url, proxy, random.Random(rng.random()))
            record(url, recorder, rng, clients, operations)
            if proxy is not None:
                proxy.disarm()
            t.tried += 1
            judge(t, recorder.calls, number)
        t.count("cuts", 0 if proxy is None else proxy.faults)
    judge_all(t)


def _recorder(url: str, proxy: Proxy | None, rng: random.Random) -> Recorder:
    repeats = REPEATS.get(url.partition(":")[0], 0)
    return Recorder(repeats) if proxy is None else CuttingRecorder(repeats, proxy, rng)


def judge(t: Trial, history: list[Call], number: int) -> None:
    """Could a single atomic store have produced it? Each key by itself."""
    t.count("operations", len(history))
    t.count("unknown answers", sum(call.answer is UNKNOWN for call in history))
    t.count("locked answers", sum(_is_locked(call.answer) for call in history))
    for calls in partition(history).values():
        t.count("keys")
        began = time.monotonic()
        why = check(calls)
        if why == UNDECIDED:
            t.count("not decided")
        elif why:
            t.broke(f"history {number}: {why}")
        t.most("longest check, s", time.monotonic() - began)


def judge_all(t: Trial) -> None:
    """Most of the histories were decided."""
    open_ones = t.counts.get("not decided", 0)
    t.expect(open_ones <= max(1, t.counts["keys"] / 20), f"{open_ones} keys were not decided")
