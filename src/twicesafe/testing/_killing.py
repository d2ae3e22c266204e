"""Real kills: the handler runs in another process, which is killed at each point in turn.

    crash_matrix(handlers.charge, 7, snapshot=…, setup=…, kill=True)

SIGKILL runs no ``finally``, flushes nothing, and does not close the database. So this finds what a raised
exception cannot, for example an effect that only looks done because a ``finally`` committed it. The
store is SQLite in a temporary folder, with a short lease that the test really waits for: about a second
per point. Of the policy it uses ``takeover`` and ``max_attempts``.

It needs a handler that another process can import, arguments that JSON can represent, and effects that
outlive the process (in a file or a database); each is checked first. It cannot show power loss: the
operating system keeps what was written.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from .._values.keys import Key, as_key
from .._values.policy import Policy
from ..errors import ConfigurationError, HeldError, ParkedError, TwicesafeError
from ..receiver import Receiver
from ._comparison import Trial, difference, same
from ._crash import Life
from ._simulated_process import BRIEF, HandlerCase, Stage, called
from ._tracing import LineTracer

__all__ = ["kills", "order_for"]

TRIES: Final = 3
"""A trial is repeated if the machine was busy for longer than the lease."""


class Order(msgspec.Struct):
    """What a child process reads from its standard input."""

    path: list[str]
    module: str
    name: str
    args: list[Any]
    kwargs: dict[str, Any]
    key: list[Any]
    bare: bool
    is_async: bool
    files: list[str]
    every_line: bool
    takeover: Literal["retry", "hold"]
    max_attempts: int
    store: str = ""
    dies_at: int | None = None


class ChildDone(msgspec.Struct):
    """The last line that a child process prints: at its end, or before it is killed."""

    passed: list[str]
    starts: int = 0
    killed: bool = False
    error: str = ""
    retryable: bool = False
    waits: bool = False
    """The key waits for an operator."""


def kills(case: HandlerCase, clean: Trial) -> Iterator[Trial]:
    """One trial per point of the child process, which may differ from the points in this process."""
    order = order_for(case)
    trial, points = _trial(case, order, "without a kill", clean)
    if trial.fault:
        raise ConfigurationError(
            f"{case.name} has another effect when it runs in another process ({trial.fault}): kill=True "
            "needs an effect that outlives its process, in a file or a database"
        )
    for number, point in enumerate(points, 1):
        yield _trial(case, msgspec.structs.replace(order, dies_at=number), point, clean)[0]


def _trial(case: HandlerCase, order: Order, name: str, clean: Trial) -> tuple[Trial, list[str]]:
    trial = Trial(name, kind="kill")
    for _ in range(TRIES):
        with tempfile.TemporaryDirectory(prefix="twicesafe-") as folder:
            called(case.setup)
            order.store = f"sqlite:///{folder}/keys.db"
            first = last = _child(order)
            starts = first.starts
            if order.dies_at is not None and not first.error:
                if case.later is not None:
                    called(case.later)
                last = _child(msgspec.structs.replace(order, dies_at=None))
                starts += last.starts
            if last.error and last.retryable:
                continue
            trial.starts = starts
            trial.state, trial.fault = case.state()
        if order.dies_at is not None and (not first.killed or first.passed[-1:] != [name]):
            trial.fault = (
                first.error or "it did not reach this point: it passes other points in each run"
            )
        elif last.waits:
            trial.fault, trial.note = "", "waits for an operator"
        elif last.error:
            trial.fault = f"the last delivery fails: {last.error}"
        elif not trial.fault and not same(clean.state, trial.state):
            trial.fault = difference(clean.state, trial.state)
        return trial, first.passed
    trial.fault = (
        f"no answer within a lease of {BRIEF:g} s, {TRIES} times: the machine may be too busy"
    )
    return trial, []


def order_for(case: HandlerCase) -> Order:
    """The order for every child process; raises if another process cannot run this case."""
    module, name = getattr(case.handler, "__module__", ""), case.name
    try:
        found = _resolve(module, name)
    except (ImportError, AttributeError):
        found = None
    if found is not case.handler or module == "__main__":
        raise ConfigurationError(
            f"kill=True runs the handler in another process, which cannot import {module}:{name}: "
            "use a function at the top level of a module"
        )
    given = [list(case.args), case.kwargs]
    try:
        decoded = msgspec.json.decode(msgspec.json.encode(given))
    except (TypeError, ValueError, msgspec.MsgspecError):
        decoded = None
    if decoded is None or not same(decoded, given):
        raise ConfigurationError(
            "kill=True sends the arguments to another process as JSON, and these change on the way: use "
            "text, numbers, lists and objects"
        )
    args, named = decoded
    key = as_key(case.key)
    policy = case.policy or (Policy() if case.receiver is None else case.receiver.policy)
    return Order(
        [str(Path(entry).absolute()) for entry in sys.path], module, name, args, named,
        [key.value, key.scope], case.bare, case.is_async, sorted(case.tracer.files),
        case.tracer.every_line, policy.takeover, policy.max_attempts,
    )  # fmt: skip


def _resolve(module: str, name: str) -> Any:
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _child(order: Order) -> ChildDone:
    """Run one delivery in a child process."""
    ran = subprocess.run(  # noqa: S603 - ourselves
        [sys.executable, "-m", __name__],
        input=msgspec.json.encode(order),
        capture_output=True,
        check=False,
    )
    try:
        done = msgspec.json.decode(ran.stdout.splitlines()[-1], type=ChildDone)
    except (IndexError, msgspec.MsgspecError):
        lines = ran.stderr.decode(errors="replace").strip().splitlines()
        ended = f"the process ended with status {ran.returncode}: {lines[-1] if lines else ''}"
        return ChildDone([], error=ended)
    done.killed = ran.returncode == -signal.SIGKILL
    return done


# --- in the child ----------------------------------------------------------------------------


class Doomed(Life):
    """A life that kills its process."""

    real = True

    def __init__(self, dies_at: int | None) -> None:
        super().__init__()
        self._kills_at = dies_at
        self.starts: list[str] = []

    @property
    def doomed(self) -> bool:
        return self._kills_at is not None

    def reach(self, name: str) -> None:
        super().reach(name)
        if len(self.passed) == self._kills_at:
            _print(ChildDone(self.passed, len(self.starts)))
            os.kill(os.getpid(), signal.SIGKILL)


def _print(done: ChildDone) -> None:
    sys.stdout.flush()
    os.write(1, b"\n" + msgspec.json.encode(done) + b"\n")


def main() -> None:
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    sys.path[:] = order.path
    handler = _resolve(order.module, order.name)
    policy = Policy(takeover=order.takeover, max_attempts=order.max_attempts)
    life = Doomed(order.dies_at)
    with Receiver.open(order.store, policy=policy) as receiver:
        case = HandlerCase(
            handler=handler, args=tuple(order.args), kwargs=order.kwargs, receiver=receiver,
            bare=order.bare, tracer=LineTracer(order.files, order.every_line), setup=_nothing,
            snapshot=_nothing, is_async=order.is_async,
        )  # fmt: skip
        stage = Stage(case, starts=life.starts)
        stage.key = Key(*order.key, absolute=True)
        answer = stage.deliver(life)
    done = ChildDone(life.passed, len(life.starts))
    if isinstance(answer, Exception):
        done.error = f"{type(answer).__name__}: {answer}"
        done.retryable = isinstance(answer, TwicesafeError) and answer.retryable
        done.waits = isinstance(answer, (HeldError, ParkedError))
    _print(done)


def _nothing() -> None: ...


if __name__ == "__main__":
    main()
