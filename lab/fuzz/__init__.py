"""The fuzzer: seeded mutations of good input, thrown at everything that reads input (D24).

    python -m lab.fuzz --inputs 1000000          all targets
    python -m lab.fuzz --inputs 50000 --seed 7 key-field

A target takes octets and must come back, within a second of processor time, with a value that keeps
its promise or with an error of the kind that it names. Anything else is a finding: the octets are
reported, and the same seed gives them again.

    mutations   good input, changed step by step
    targets     the readers, what each may raise, what must hold of what it returns
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from ..simulation.campaign import workers
from .mutations import Mutator
from .targets import TARGETS, Target

__all__ = ["LIMIT", "TARGETS", "Finding", "Tally", "Target", "fuzz", "fuzz_all"]

LIMIT = 1.0
"""Seconds of processor time for one input."""


@dataclass(frozen=True)
class Finding:
    octets: bytes
    what: str

    def __str__(self) -> str:
        return f"{self.what}: {self.octets[:200]!r}"


@dataclass
class Tally:
    """What became of the inputs of one target."""

    target: str
    inputs: int = 0
    accepted: int = 0
    seconds: float = 0
    slowest: float = 0
    findings: list[Finding] = field(default_factory=list)

    def __str__(self) -> str:
        refused = self.inputs - self.accepted
        return (
            f"{self.target:16} {self.inputs:>9,} inputs {self.accepted:>9,} accepted {refused:>9,} "
            f"refused {self.seconds:6.1f} s, slowest {self.slowest * 1e3:7.2f} ms, "
            f"{len(self.findings)} findings"
        )


class _HangError(BaseException):
    """Raised by the clock into a reader that does not come back."""


def fuzz(target: Target, inputs: int, seed: int = 0, enough: int = 5) -> Tally:
    """Throw this many inputs at a target; stop early after `enough` findings."""
    tally = Tally(target.name)
    mutator = Mutator(target.seeds, target.words, random.Random(f"{seed} {target.name}"))
    clock = time.process_time
    began = clock()
    with _alarm() as arm:
        for octets in mutator.stream(inputs):
            tally.inputs += 1
            start = clock()
            try:
                arm(LIMIT)
                accepted = target.read(octets)
                arm(0)
                tally.accepted += accepted
                mutator.learn(octets, accepted)
            except _HangError:
                tally.findings.append(Finding(octets, "hang"))
            except Exception as error:
                arm(0)
                tally.findings.append(Finding(octets, f"{type(error).__name__}: {error}"))
            tally.slowest = max(tally.slowest, clock() - start)
            if len(tally.findings) >= enough:
                break
    tally.seconds = clock() - began
    return tally


def fuzz_all(names: Sequence[str], inputs: int, jobs: int) -> list[Tally]:
    """Each of these targets, on all cores."""
    with workers(jobs, len(names)) as each:
        return list(each(_fuzz, [(name, inputs) for name in names]))


def _fuzz(asked: tuple[str, int]) -> Tally:
    name, inputs = asked
    return fuzz(TARGETS[name], inputs)


@contextmanager
def _alarm() -> Iterator[Callable[[float], object]]:
    """A clock of processor time, so that a busy machine is not taken for a hang."""

    def ring(*_: object) -> None:
        raise _HangError

    before = signal.signal(signal.SIGVTALRM, ring)
    try:
        yield lambda seconds: signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
