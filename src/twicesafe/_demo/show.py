"""The show: the same storm four times, and whether the promises held.

lease     a receiver; the bank takes every charge it is asked for
fencing   a receiver; the bank is given key and fence, and looks at them
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
from .plan import Plan
from .storm import Storm, Traffic
from .tally import Tally, count
from .worker import Setting

__all__ = ["Run", "Show", "play"]

THREADS: Final = 4
"""Deliveries that one worker has in its hands at a time."""

Mode: TypeAlias = Literal["lease", "fencing", "inbox", "without"]
Watch: TypeAlias = Callable[[Mode, str, Traffic], None]
"""Told the mode, its title and the traffic so far."""


@dataclass(frozen=True, slots=True)
class Run:
    mode: Mode
    title: str
    heading: str
    tally: Tally


@dataclass(frozen=True, slots=True)
class Show:
    plan: Plan
    workers: int
    runs: Sequence[Run]

    @property
    def broken(self) -> list[str]:
        """The promises that did not hold, in words."""
        return [
            f"{run.title}: {problem}"
            for run in self.runs
            if run.mode != "without"
            for problem in _problems(run)
        ]

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
    plan: Plan,
    *,
    workers: int,
    store: str | None = None,
    lease: float = 0.6,
    watch: Watch = lambda *_: None,
) -> Show:
    """Let the storm rage once per mode. ``store``: where the records go; default: a temp folder."""
    with tempfile.TemporaryDirectory(prefix="twicesafe-demo-") as folder:
        url = store or f"sqlite:///{folder}/records.db"
        with Receiver.open(url) as receiver:
            if not receiver.store.capabilities.shared:
                raise ConfigurationError(
                    "the demo's workers are processes and need a store that they can share: "
                    "use sqlite:///file.db or a server"
                )
            runs = list(_runs(plan, workers, url, lease, watch, Path(folder), receiver))
    return Show(plan, workers, runs)


def _runs(
    plan: Plan,
    workers: int,
    url: str,
    lease: float,
    watch: Watch,
    folder: Path,
    receiver: Receiver,
) -> Iterator[Run]:
    token = secrets.token_hex(4)  # a second demo on the same store meets none of these keys
    for mode, bank, title, heading in _CAST:
        home = folder / mode
        home.mkdir()
        scope = ("twicesafe demo", token, mode)
        protected = mode in ("lease", "fencing")  # the inbox is where its books are
        setting = Setting(bank, str(home), THREADS, url if protected else "", scope, lease)
        traffic = Storm(plan, setting, workers, partial(watch, mode, title)).rage()
        attempts = _attempts(receiver.options(scope=scope), plan) if protected else {}
        with closing(bank_at(bank, home)) as books:
            tally = count(plan, traffic, books.charges(), attempts)
        yield Run(mode, title, heading, tally)


def _attempts(receiver: Receiver, plan: Plan) -> dict[str, int]:
    """How many starts each record admits: the bank must not show more."""
    records = ((payment.id, receiver.record(payment.id)) for payment in plan.payments)
    return {name: record.attempt for name, record in records if record is not None}


def _problems(run: Run) -> Iterator[str]:
    tally = run.tally
    if tally.lost:
        yield f"{tally.lost} payments lost"
    if tally.unexplained:
        yield f"{tally.unexplained} payments doubled without a recorded cause"
    if tally.different_answers:
        yield f"{tally.different_answers} payments were given different answers"
    if run.mode == "fencing" and tally.doubled:
        yield f"{tally.doubled} payments doubled at a bank that looks at fences"
