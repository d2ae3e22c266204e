"""Runs the same plan in four modes, then the checkouts of `saga`, and checks whether the guarantees held.

lease     a receiver; the bank takes every charge
fencing   a receiver; the bank receives and checks key and fence
inbox     an inbox; charges are rows of our own database, in one transaction with the record
without   no twicesafe; the bank takes every charge
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal, TypeAlias

from .. import ConfigurationError, Receiver
from .bank import BankName, bank_at
from .plan import DemoPlan
from .saga import Saga, play_saga
from .storm import Storm, Traffic
from .tally import DemoTally, count
from .worker import DemoSetting

__all__ = ["DemoRun", "Show", "play"]

THREADS: Final = 4
"""Concurrent deliveries per worker."""

Mode: TypeAlias = Literal["lease", "fencing", "inbox", "without"]
Watch: TypeAlias = Callable[[Mode, str, Traffic], None]
"""Called with the mode, its title and the traffic so far."""


@dataclass(frozen=True, slots=True)
class DemoRun:
    mode: Mode
    title: str
    heading: str
    tally: DemoTally


@dataclass(frozen=True, slots=True)
class Show:
    plan: DemoPlan
    workers: int
    runs: Sequence[DemoRun]
    saga: Saga | None = None
    """None: the store keeps no steps."""

    @property
    def broken(self) -> list[str]:
        """The guarantees that did not hold, as text."""
        return [
            f"{run.title}: {problem}"
            for run in self.runs
            if run.mode != "without"
            for problem in _problems(run)
        ] + ([] if self.saga is None else self.saga.problems)

    @property
    def held(self) -> bool:
        return not self.broken


_CAST: Final[tuple[tuple[Mode, BankName, str, str], ...]] = (
    ("lease", "open", "receiver, open bank", "receiver\nopen bank"),
    ("fencing", "fencing", "receiver, fencing bank", "receiver\nfencing"),
    ("inbox", "own", "inbox, books of our own", "inbox\nown books"),
    ("without", "open", "without twicesafe", "without\nopen bank"),
)


def play(
    plan: DemoPlan,
    *,
    workers: int,
    store: str | None = None,
    lease: float = 0.6,
    watch: Watch = lambda *_: None,
) -> Show:
    """Run the plan once per mode. ``store``: where the records go; default: a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="twicesafe-demo-") as folder:
        url = store or f"sqlite:///{folder}/records.db"
        with Receiver.open(url) as receiver:
            if not receiver.store.capabilities.shared:
                raise ConfigurationError(
                    "the demo's workers are processes and need a store that they can share: "
                    "use sqlite:///file.db or a server"
                )
            token = secrets.token_hex(4)  # a second demo on the same store uses other keys
            runs = list(_runs(plan, workers, url, lease, watch, Path(folder), receiver, token))
            saga = None
            if receiver.store.capabilities.steps:
                saga = play_saga(
                    plan.seed,
                    url,
                    ("twicesafe demo", token, "saga"),
                    Path(folder) / "saga",
                    orders=len(plan.payments),
                    kills=plan.kill_every > 0,
                )
    return Show(plan, workers, runs, saga)


def _runs(
    plan: DemoPlan,
    workers: int,
    url: str,
    lease: float,
    watch: Watch,
    folder: Path,
    receiver: Receiver,
    token: str,
) -> Iterator[DemoRun]:
    for mode, bank, title, heading in _CAST:
        home = folder / mode
        home.mkdir()
        scope = ("twicesafe demo", token, mode)
        protected = mode in ("lease", "fencing")  # the inbox is where its books are
        setting = DemoSetting(bank, str(home), THREADS, url if protected else "", scope, lease)
        traffic = Storm(plan, setting, workers, partial(watch, mode, title)).rage()
        attempts = _attempts(receiver.options(scope=scope), plan) if protected else {}
        with closing(bank_at(bank, home)) as books:
            tally = count(plan, traffic, books.charges(), attempts)
        yield DemoRun(mode, title, heading, tally)


def _attempts(receiver: Receiver, plan: DemoPlan) -> dict[str, int]:
    """How many attempts each record shows: the bank must not have more charges."""
    records = ((payment.id, receiver.record(payment.id)) for payment in plan.payments)
    return {name: record.attempt for name, record in records if record is not None}


def _problems(run: DemoRun) -> Iterator[str]:
    tally = run.tally
    if tally.lost:
        yield f"{tally.lost} payments lost"
    if tally.unexplained:
        yield f"{tally.unexplained} payments charged twice without a recorded reason"
    if tally.different_answers:
        yield f"{tally.different_answers} payments got different answers"
    if run.mode == "fencing" and tally.doubled:
        yield f"{tally.doubled} payments charged twice at a bank that checks fences"
