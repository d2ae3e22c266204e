"""The adapter matrix with deaths (C3, mode 2): every way to hold a transaction, killed at every phase.

The tests judge each way by what the server says. Here the worker dies after it began, recorded, released
its savepoint, applied the effect or committed; then the message is delivered again. Record and effect are
there together or not at all, and in the end once.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.transactions import ways, wrapped
from tests.transactions.trying import Shop, seen_in
from tests.transactions.ways import Way

from .adapter import PHASES
from .trial import Trial, trial
from .zombies import fresh_url

__all__ = ["adapter_matrix"]

TRIES: Final = 5


@trial("adapter matrix", "C3", "deaths", ("sqlite", "postgres", "mariadb"))
def adapter_matrix(t: Trial) -> None:
    """A worker is killed at each phase of its transaction, on every driver and wrapper, and in every way to
    begin and nest a transaction there. Are record and effect always together, and applied once in the end?"""
    rng = t.rng
    every = [way for way in ways.ALL + wrapped.ALL if way.engine == t.engine and not way.place]
    atomic = [way for way in every if way.verdict == "atomic"]
    chosen = atomic if t.full else rng.sample(atomic, 3)
    with fresh_url(t.engine) as url, contextlib.closing(Shop(t.engine, url)) as shop:
        for way in chosen:
            for phase in PHASES if t.full else rng.sample(PHASES, 2):
                _die_and_deliver(t, shop, way, phase)


def _die_and_deliver(t: Trial, shop: Shop, way: Way, phase: str) -> None:
    number = ways.number()
    what = f"{way.id}, killed when {phase}"
    t.expect(_worker(shop.url, way, number, phase) == phase, f"{what}: it did not come so far")
    t.tried += 1
    record, effects = seen_in(shop, number)
    t.expect(record == bool(effects), f"{what}: record {record}, effects {effects}")
    t.expect(record == (phase == "committed"), f"{what}: record {record}")
    for _ in range(TRIES):
        if _worker(shop.url, way, number, "") == "committed":
            break
        t.count("delivered again")
    record, effects = seen_in(shop, number)
    t.expect(record and effects == 1, f"{what}: in the end record {record}, effects {effects}")


def _worker(url: str, way: Way, number: int, last: str) -> str:
    """The last phase that it reached."""
    script = Path(__file__).with_name("adapter.py")  # a script: the whole lab takes long to import
    words = [sys.executable, str(script), url, way.id, str(number), last]
    reached = ""
    with subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(script.parents[2])},
    ) as worker:
        assert worker.stdout is not None
        for line in worker.stdout:
            reached = line.strip()
            if reached == last:
                worker.kill()
    return reached
