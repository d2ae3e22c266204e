"""Replies cut at every byte (C5): whatever the client saw of an answer, the work is done once.

One exchange after the other goes through the proxy; in each, one reply (or request) ends after a
chosen number of bytes. The lease is long and the caller's time limit short: a client that took a cut
reply for a lost claim would get `StillInProgressError`, and is found out.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import random
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from twicesafe import Backoff, Key, Policy
from twicesafe._core.protocol import Ack, ClaimRequest, Complete, Read, Renew, Verdict
from twicesafe._values.keys import new_owner
from twicesafe._values.records import State
from twicesafe.errors import StoreUnavailableError

from .drivers import DRIVERS, DriverReceiver, sturdy, through
from .proxy import ACTS, Fault, Proxy
from .trial import KEYED, SERVERS, Trial, trial

__all__ = [
    "bench_for",
    "cut_replies",
    "cut_requests",
    "end_in_mid_record",
    "ending_loops",
    "rough_network",
]

POLICY: Final = Policy(lease=60, wait=2, backoff=Backoff(first=0), retention=600)
SOON: Final = 20.0
"""Seconds: far less than the lease, far more than a new connection on a busy machine."""
HOUR: Final = 3_600_000
HASTY: Final = {"dynamodb": 3}
"""Seconds until a call is an outage, where one is not enough: boto3 divides them by its three tries."""


class Bench:
    """One client behind the proxy, and the scenes that are played through it."""

    def __init__(
        self, t: Trial, driver: str, client: DriverReceiver, proxy: Proxy, way: str
    ) -> None:
        self.t, self.driver, self.client, self.proxy, self.way = t, driver, client, proxy, way
        self._numbers = itertools.count(1)
        self.runs: dict[str, int] = {}
        self.fault = Fault("reply")
        self.seconds = 0.2

    def key(self) -> str:
        return f"cut-{next(self._numbers)}"

    def run(self, key: str) -> str:
        self.runs[key] = self.runs.get(key, 0) + 1
        return f"{key} done"

    def arm(self) -> None:
        self.proxy.arm(self.fault)

    def disarm(self) -> None:
        self.proxy.disarm()

    # -- scenes: what is armed when; each raises AssertionError if a promise broke -------------

    def claim(self) -> None:
        key = self.key()

        def handler() -> str:
            self.disarm()
            return self.run(key)

        self.arm()
        outcome = self.client.process(key, handler)
        self._once(key, outcome)

    def complete(self) -> None:
        key = self.key()

        def handler() -> str:
            self.arm()
            return self.run(key)

        outcome = self.client.process(key, handler)
        self.disarm()
        self._once(key, outcome)

    def fail(self) -> None:
        key = self.key()

        def handler() -> str:
            self.arm()
            raise ValueError("on purpose")

        try:
            self.client.process(key, handler)
        except ValueError:
            pass
        else:
            raise AssertionError("the handler's own error was swallowed")
        self.disarm()
        row = self.ask(Read(Key(key).id))
        assert row.state is State.RELEASED, f"not released but {row.state}"
        outcome = self.client.process(key, self.run, key)
        assert (outcome.attempt, outcome.replayed) == (2, False), outcome
        self._once(key, outcome)

    def replay(self) -> None:
        key = self.key()
        first = self.client.process(key, self.run, key)
        self.arm()
        again = self.client.process(key, self.run, key)
        self.disarm()
        assert again.replayed
        assert again.value == first.value
        assert self.runs[key] == 1, "a duplicate ran"

    def renew(self) -> None:
        key, owner = Key(self.key()), new_owner()
        won = self.ask(ClaimRequest(key, owner, HOUR))
        assert won.verdict is Verdict.WON
        ask = Renew(key.id, owner, won.fence, HOUR)
        self.arm()
        ack = self.ask(ask)
        self.disarm()
        assert ack is Ack.OK, f"the owner's renewal: {ack}"
        assert self.ask(Complete(key.id, owner, won.fence, HOUR, b"x")) is Ack.OK

    def batch(self) -> None:
        keys = [self.key() for _ in range(3)]
        self.arm()
        outcomes = self.client.process_many(keys, self.run)
        self.disarm()
        for key, outcome in zip(keys, outcomes, strict=True):
            assert outcome.ok, f"{type(outcome.error).__name__}: {outcome.error}"
            self._once(key, outcome)

    def from_nothing(self) -> None:
        """The greeting, the sign-in and the preparing of statements too."""
        key = self.key()
        self.proxy.cut()
        self.arm()
        outcome = self.client.process(key, self.run, key)
        self.disarm()
        self._once(key, outcome)

    def ask(self, request: Any) -> Any:
        """As the lease keeper does: the same words again. (The scene before may have left a dead
        connection, so that the second try is the one which is cut.)"""
        for _ in range(2):
            with contextlib.suppress(StoreUnavailableError):
                return self.client.perform(request)
        return self.client.perform(request)

    def again(self, key: str) -> None:
        """Deliver until it is done: a busy machine may be too slow for a short lease."""
        while True:
            with contextlib.suppress(StoreUnavailableError):
                self.client.process(key, self.run, key)
                return

    def _once(self, key: str, outcome: Any) -> None:
        assert self.runs.get(key) == 1, f"ran {self.runs.get(key)} times"
        assert outcome.value == f"{key} done"
        again = self.client.process(key, self.run, key)
        assert again.replayed, "a recorded result was lost"
        assert again.value == outcome.value
        assert self.runs[key] == 1, "a duplicate ran"

    @property
    def scenes(self) -> tuple[Callable[[], None], ...]:
        return (self.claim, self.complete, self.fail, self.renew, self.replay, self.batch)

    @property
    def long_scenes(self) -> tuple[Callable[[], None], ...]:
        """Thousands of bytes: a sample of them, also in a full run."""
        return (self.from_nothing,)

    # -- the sweep ----------------------------------------------------------------------------

    def length(self, scene: Callable[[], None]) -> int:
        """Bytes that pass on the armed way when nothing is cut, on a connection that knows it all."""
        for _ in range(3):
            self.fault = Fault(self.way)  # type: ignore[arg-type]
            scene()
        return self.fault.passed

    def play(self, scene: Callable[[], None], offset: int, act: str) -> None:
        self.client.process(self.key(), str)  # a warm connection: the same bytes each time
        self.fault = Fault(self.way, offset, act, self.seconds)  # type: ignore[arg-type]
        began = time.monotonic()
        try:
            scene()
        except Exception as error:
            what = f"{self.driver}, {scene.__name__} cut ({act}) after {offset} bytes"
            self.t.broke(f"{what}: {type(error).__name__}: {error}")
        finally:
            self.disarm()
        taken = time.monotonic() - began
        self.t.most("longest exchange, s", taken)
        if taken > SOON:
            self.t.broke(f"{self.driver}, {scene.__name__} cut after {offset}: {taken:.1f} s")
        self.t.tried += self.fault.happened
        self.t.count("over before the cut", not self.fault.happened)


@contextmanager
def bench_for(
    t: Trial, driver: str, way: str, policy: Policy = POLICY, **options: object
) -> Iterator[Bench]:
    """A fresh store behind a proxy, and a client of this driver to it."""
    server = sturdy(t.engine)
    with server.fresh() as fresh, Proxy(server.port) as proxy:
        url = through(fresh, proxy.port)
        for name, value in options.items():
            url += f"{'&' if '?' in url else '?'}{name}={value}"
        with DriverReceiver(driver, url, policy) as client:
            yield Bench(t, driver, client, proxy, way)


def _sweep(t: Trial, way: str, per_scene: int | None) -> None:
    """Every driver by itself, all at once. ``per_scene``: so many offsets; None: all."""

    def through_one(driver: str, page: Trial) -> None:
        rng = random.Random(f"{driver}/{t.seed}")
        with bench_for(page, driver, way) as bench:
            for scene in (*bench.scenes, *bench.long_scenes):
                length = bench.length(scene)
                page.count("bytes", length + 1)
                offsets: Iterable[int] = range(length + 1)
                if per_scene is not None or scene in bench.long_scenes:
                    some = rng.sample(range(length + 1), min(per_scene or 200, length))
                    offsets = sorted({0, length, *some})
                for offset in offsets:
                    bench.play(scene, offset, "close")
                for offset in rng.sample(range(length + 1), min(length, t.size(2, 12))):
                    bench.play(scene, offset, "reset")

    t.at_once(functools.partial(through_one, driver) for driver in DRIVERS[t.engine])
    t.notes.append(f"through {', '.join(DRIVERS[t.engine])}")


@trial("cut replies", "C5", "cuts", (*SERVERS, *KEYED))
def cut_replies(t: Trial) -> None:
    """Every reply to claim, complete, fail, renew, replay and batch is cut after every number of bytes.
    There must be one run and one result, and no caller may wait for a lease."""
    _sweep(t, "reply", None if t.full else 6)


@trial("cut requests", "C5", "cuts", (*SERVERS, *KEYED))
def cut_requests(t: Trial) -> None:
    """Every request is cut after some number of bytes. There must be one run and one result, and no caller may
    wait for a lease."""
    _sweep(t, "request", t.size(3, 100))


@trial("rough network", "C5", "faults", (*SERVERS, *KEYED))
def rough_network(t: Trial) -> None:
    """Connections are reset, half closed, delayed beyond the time-out, throttled and silently dropped.
    There must be one run and one result, and no caller may wait for a lease."""

    def through_one(driver: str, page: Trial) -> None:
        rng = random.Random(f"rough/{driver}/{t.seed}")
        with bench_for(page, driver, "reply", timeout=HASTY.get(t.engine, 1)) as bench:
            for _ in range(t.size(1, 3)):
                for act in ACTS:
                    for scene in rng.sample(bench.scenes, t.size(2, len(bench.scenes))):
                        bench.way = rng.choice(("reply", "request"))
                        bench.seconds = rng.choice((0.05, 0.3, 1.2))
                        bench.play(scene, rng.randrange(60), act)
                        page.count(act, bench.fault.happened)

    t.at_once(functools.partial(through_one, driver) for driver in DRIVERS[t.engine])


def end_in_mid_record(server: Any, url: str, driver: str, delay: float = 0.3) -> tuple[int, Any]:
    """An event loop ends while the reply to a record is on its way: runs, and what is recorded."""
    runs: list[str] = []
    with Proxy(server.port) as proxy:
        with DriverReceiver(driver, through(url, proxy.port), POLICY) as client:
            client.process("warm", str)

            async def handler() -> str:
                runs.append("run")
                proxy.arm(Fault("reply", 0, "delay", delay))
                return "done"

            async def main() -> None:
                task = asyncio.create_task(client.receiver.process("ending", handler))
                while not runs:  # noqa: ASYNC110 - it happens on the other side of the wire
                    await asyncio.sleep(0.001)
                await asyncio.sleep(0.05)
                assert not task.done()

            client.run(main())
            client.end_loop()
            proxy.disarm()
        with DriverReceiver(driver, url, POLICY) as client:
            return len(runs), client.process("ending", str, "run again").value


@trial("ending loops", "C5", "ends", (*SERVERS, *KEYED))
def ending_loops(t: Trial) -> None:
    """An event loop ends (asyncio.run returns, Ctrl-C) while a result is being recorded. Does the loop end,
    and is the work recorded?"""
    server = sturdy(t.engine)
    for driver in DRIVERS[t.engine][1:]:
        for _ in range(t.size(2, 10)):
            with server.fresh() as url:
                began = time.monotonic()
                found = end_in_mid_record(server, url, driver)
                t.most("longest end, s", time.monotonic() - began)
                t.tried += 1
                t.expect(found == (1, "done"), f"{driver}: {found[0]} runs, recorded {found[1]!r}")
