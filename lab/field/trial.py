"""A trial: one way to mistreat one engine, with what it counted and what it found broken.

A trial is a function that is given a `Trial` to fill in. It draws all its chances from the trial's
seed, so that the words it prints on a failure repeat it (where in the work a blow falls is up to
the machine, as ever with real processes).
"""

from __future__ import annotations

import faulthandler
import logging
import os
import random
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from tests.servers import NoServerError

__all__ = ["KEYED", "SERVERS", "TRIALS", "Absent", "Trial", "new_trial", "run_trial", "trial"]

SERVERS: Final = ("postgres", "valkey", "mariadb")

KEYED: Final = ("etcd", "dynamodb", "mongodb")
"""Stores of records only, without transactions of the caller's own. The one of DynamoDB is an emulator, which
keeps nothing when it ends: it is cut off, not killed. The one of MongoDB is FerretDB."""

LIMIT: Final = 3600
"""Seconds after which a trial that hangs shows where, and ends."""


class Absent(Exception):  # noqa: N818 - no error: the trial does not apply here
    """There is nothing to try here; the reason is shown."""


class Trial(msgspec.Struct):
    name: str
    method: str
    """Its number in the list of methods."""
    engine: str
    seed: int
    full: bool
    tried: int = 0
    unit: str = ""
    counts: dict[str, int | float] = {}
    broken: list[str] = []
    """What may never happen and did."""
    notes: list[str] = []
    """What a reader must know to judge the numbers."""
    seconds: float = 0.0
    skipped: str = ""
    portion: int = 0
    """Which portion of the whole this is, from 1; 0: the whole."""
    version: str = ""
    """What was tried, if it is not the version of all trials."""

    @property
    def rng(self) -> random.Random:
        """Always the same chances from the start."""
        portion = f"/{self.portion}" if self.portion else ""
        return random.Random(f"{self.name}/{self.engine}/{self.seed}{portion}")

    @property
    def words(self) -> str:
        """The command that runs this trial again."""
        full = " --full" if self.full else ""
        full += f" --portion {self.portion}" if self.portion else ""
        return f"python -m lab field {self.name!r} --engine {self.engine} --seed {self.seed}{full}"

    def size(self, small: int, full: int) -> int:
        """How many of something; a portion has its share of the whole."""
        if not self.full:
            return small
        return full // TRIALS[self.name].portions if self.portion else full

    def count(self, what: str, how_many: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + how_many

    def most(self, what: str, value: float) -> None:
        self.counts[what] = round(max(float(self.counts.get(what, 0)), value), 3)

    def broke(self, how: str) -> None:
        self.broken.append(how)

    def expect(self, true: Any, how: str) -> None:
        if not true:
            self.broke(how)

    def at_once(self, parts: Iterable[Callable[[Trial], None]]) -> None:
        """Several parts in their own threads, each with its own page; then all is added."""

        def go(part: Callable[[Trial], None]) -> Trial:
            page = replace(self, counts={}, broken=[], notes=[], tried=0)
            part(page)
            return page

        with ThreadPoolExecutor() as pool:
            for page in list(pool.map(go, parts)):
                self.add(page)

    def add(self, page: Trial) -> None:
        """What another part of this trial has found."""
        self.tried += page.tried
        self.broken += page.broken
        self.notes += [note for note in page.notes if note not in self.notes]
        for what, how_many in page.counts.items():
            if isinstance(how_many, float):
                self.most(what, how_many)
            else:
                self.count(what, how_many)


Run = Callable[[Trial], None]


class _Entry(msgspec.Struct, frozen=True):
    method: str
    unit: str
    engines: tuple[str, ...]
    run: Run
    question: str
    portions: int
    """The long form is run in so many portions: each is kept when it is done, so a break costs one of them."""


TRIALS: dict[str, _Entry] = {}


def trial(
    name: str, method: str, unit: str, engines: tuple[str, ...] = SERVERS, portions: int = 1
) -> Callable[[Run], Run]:
    """Enter a function into the list; its docstring is the question that it answers."""

    def enter(run: Run) -> Run:
        question = " ".join((run.__doc__ or "").split())
        TRIALS[name] = _Entry(method, unit, engines, run, question, portions)
        return run

    return enter


def run_trial(name: str, engine: str, seed: int, full: bool, portion: int = 0) -> Trial:
    done = new_trial(name, engine, seed, full, portion)
    entry = TRIALS[name]
    began = time.monotonic()
    log = logging.getLogger("twicesafe")
    loud = log.level
    log.setLevel(logging.CRITICAL)  # what fails here fails on purpose
    faulthandler.dump_traceback_later(LIMIT, exit=True, file=sys.__stderr__ or 2)
    try:
        entry.run(done)
    except NoServerError as reason:
        if os.environ.get("CI") == "true" and not reason.optional:
            raise
        done.skipped = str(reason).splitlines()[0]
    except Absent as reason:
        done.skipped = str(reason)
    except Exception as error:  # a trial that cannot be finished has shown nothing
        where = _place_of(error)
        done.broke(f"{type(error).__name__}: {error} ({where})")
    finally:
        faulthandler.cancel_dump_traceback_later()
        log.setLevel(loud)
    done.seconds = round(time.monotonic() - began, 1)
    return done


def new_trial(name: str, engine: str, seed: int, full: bool, portion: int = 0) -> Trial:
    """A page on which nothing is written."""
    entry = TRIALS[name]
    return Trial(
        *(name, entry.method, engine, seed, full),
        unit=entry.unit, counts={}, broken=[], notes=[], portion=portion,
    )  # fmt: skip


def _place_of(error: BaseException) -> str:
    trace = error.__traceback__
    place = "?"
    while trace is not None:
        code = trace.tb_frame.f_code
        place = f"{code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place
