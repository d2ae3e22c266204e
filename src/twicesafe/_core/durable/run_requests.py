"""The requests of durable runs, and the answers. Plain data, like those of `protocol`.

    worker     StartRun  RecordStep  Suspend  FailRun
    anyone     Submit  Signal  LoadRun
    operator   Restart
    completer  FindDue  TidyRuns
    upkeep     RewriteRun

A run is a record like any other: it is claimed, renewed and completed by the requests of `protocol`.
Its steps are kept beside the record. Each request is atomic over both. A store that declares
``steps`` performs them all.
"""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from ..._values.keys import Key
from ..._values.steps import Step, StepState
from ..protocol import Ack, ClaimRequest, Fail, Release

__all__ = [
    "FOREVER",
    "OVERDUE",
    "RUN_OPS",
    "WITHOUT_LIMIT",
    "WITHOUT_RUNS",
    "Due",
    "DueRun",
    "FailRun",
    "FindDue",
    "LoadRun",
    "RecordStep",
    "Restart",
    "RewriteRun",
    "Run",
    "Signal",
    "StartRun",
    "Submit",
    "Suspend",
    "TidyRuns",
]

FOREVER: Final = 100 * 365 * 86_400_000
"""The retention of a run that is not finished: no sweep removes it."""

OVERDUE: Final = 3_600_000
"""Milliseconds after which a run that no completer could run is parked. Until then, nodes with
other code may run it."""

WITHOUT_LIMIT: Final = 1 << 30
"""The `max_attempts` of an attempt that was interrupted: it parks no run that has something to undo."""


class StartRun(ClaimRequest, gc=False):
    """A claim of a durable run. Its answer, if it is won, has all recorded steps.

    `max_attempts` counts the attempts to finish. A run with an undo may be claimed as often again, to
    be undone.
    """

    op: ClassVar[str] = "start_run"
    function: str = ""
    """The name of the durable function, for the completer."""
    arguments: bytes = b""
    """The encoded arguments, for the completer."""
    completes: bool = True
    """False: only callers run it, never the completer."""


class Submit(StartRun, gc=False):
    """Record a run that no worker has started: it is due at once. WON: it is new."""

    op: ClassVar[str] = "submit_run"


class RecordStep(msgspec.Struct, gc=False):
    """Record a step: one write, which needs the run's owner and fence.

    OK: recorded now, or before by this request. REFUSED: there is another step, another result or
    another payload under this name. LOST, MISSING: this worker no longer owns the run.
    """

    op: ClassVar[str] = "record_step"
    id: bytes
    owner: bytes
    fence: int
    name: str
    kind: str
    state: StepState = StepState.DONE
    fingerprint: bytes = b""
    result: bytes | None = None
    attempt: int = 1
    position: int = 0
    undo: bool = False
    delay: int = 0
    """WAITING: milliseconds until it is due; 0: no end."""


class Suspend(msgspec.Struct, gc=False):
    """Give the run back until it is due. Not an attempt. If a signal it waits for came, it is due now."""

    op: ClassVar[str] = "suspend"
    id: bytes
    owner: bytes
    fence: int
    delay: int
    waits: tuple[str, ...] = ()
    """The signals that make it due earlier."""


class FailRun(Fail, gc=False):
    """`Fail`, and the completer looks at the run after the back-off."""

    op: ClassVar[str] = "fail_run"


class Signal(msgspec.Struct, gc=False):
    """Keep a value for a wait of this name. True: kept. False: there is one, or the run is over.

    It may come before its wait and before its run. `retention`: how long it waits for its run.
    """

    op: ClassVar[str] = "signal"
    id: bytes
    name: str
    result: bytes
    retention: int
    by: str = ""
    """The operator who sent it: if there is a record, this is written to its audit trail. Empty: a program."""
    why: str = ""


class LoadRun(msgspec.Struct, gc=False):
    """Reply: `Run`, or None: there is none under this key."""

    op: ClassVar[str] = "load_run"
    id: bytes


class Run(msgspec.Struct, gc=False):
    function: str
    arguments: bytes
    steps: list[Step]


class Restart(Release, gc=False):
    """`Release`, and drop the recorded steps: the next claim starts from the beginning."""

    op: ClassVar[str] = "restart"


class FindDue(msgspec.Struct, gc=False):
    """Look at up to `limit` runs whose time has come, and find those that a worker can run.

    `pause`: milliseconds for which no other completer is given the same runs. The claim decides.
    """

    op: ClassVar[str] = "find_due"
    limit: int
    pause: int
    functions: tuple[str, ...] | None = None
    """Only runs of these functions, and those that are overdue by `overdue` milliseconds; None: all."""
    overdue: int = OVERDUE


class DueRun(msgspec.Struct, gc=False):
    """A run that a completer may continue, with what is needed to call its function."""

    key: Key
    function: str
    arguments: bytes
    fingerprint: bytes | None = None
    overdue: int = 0
    """Milliseconds for which no worker has taken it."""


class Due(msgspec.Struct, gc=False):
    runs: list[DueRun]
    more: bool = False
    """There were at least `limit` to look at: ask again."""


class TidyRuns(msgspec.Struct, gc=False):
    """Remove the steps of runs whose records are gone or over. Reply: how many, and where to continue.

    `only`: look at this one run, whenever it would be due: an operator changed its record.
    """

    op: ClassVar[str] = "tidy_runs"
    limit: int
    after: bytes = b""
    only: bytes = b""


class RewriteRun(msgspec.Struct, gc=False):
    """Store the same payload of a run in other bytes: nothing else changes, no time and no fence.

    REFUSED: the run is in progress, and its worker may be recording. LOST: it has other bytes by now.
    """

    op: ClassVar[str] = "rewrite_run"
    id: bytes
    step: str
    """The step whose result it is; empty: the arguments of the run."""
    before: bytes
    after: bytes


WITHOUT_RUNS: Final = {
    LoadRun.op: None,
    FindDue.op: Due([]),
    TidyRuns.op: (0, b""),
    RewriteRun.op: Ack.MISSING,
}
"""The answers of a store that never had a run: it need not create anything for these requests."""

RUN_OPS: Final = frozenset(
    kind.op
    for kind in (
        StartRun,
        Submit,
        RecordStep,
        Suspend,
        FailRun,
        Signal,
        LoadRun,
        Restart,
        FindDue,
        TidyRuns,
        RewriteRun,
    )
)
