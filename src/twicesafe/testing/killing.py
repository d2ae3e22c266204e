"""Real kills: the handler runs in a process of its own, which is killed at each point in turn.

    crash_matrix(handlers.charge, 7, snapshot=…, setup=…, kill=True)

SIGKILL asks nobody: no ``finally``, no flush, no goodbye to the database. So this sees what a raised
death cannot, for example an effect that only looks done because a ``finally`` committed it. The
store is SQLite in a temporary folder, with a short lease that is waited for: about a second per point.

It needs a handler that another process can import, arguments that JSON can carry, and a world that
outlives a process (a file, a database); each is checked before anything is killed. It cannot show
power loss: what the operating system has, it keeps.
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
from typing import Any, Final

import msgspec

from ..errors import ConfigurationError, TwicesafeError
from ..receiver import Receiver
from .comparing import Trial, difference, same
from .crash import Life
from .lives import BRIEF, Case, Stage, called

__all__ = ["kills"]

TRIES: Final = 3
"""A machine that is busy for longer than the lease makes a trial void; it is done again."""


class Order(msgspec.Struct):
    """What a child is told on its standard input."""

    path: list[str]
    module: str
    name: str
    args: list[Any]
    kwargs: dict[str, Any]
    store: str
    bare: bool
    lines: bool
    dies_at: int | None


class Done(msgspec.Struct):
    """What a child that lived says on its standard output, in one last line."""

    error: str = ""
    retryable: bool = False


def kills(case: Case, points: list[str], clean: Trial) -> Iterator[Trial]:
    """One trial per point."""
    order = _order_for(case)
    trial = _trial(case, order, "without a kill", clean)
    if trial.fault:
        raise ConfigurationError(
            f"{case.name} does not leave the same world behind from another process ({trial.fault}): "
            "kill=True needs an effect that outlives its process, in a file or a database"
        )
    for number, point in enumerate(points, 1):
        yield _trial(case, msgspec.structs.replace(order, dies_at=number), point, clean)


def _trial(case: Case, order: Order, name: str, clean: Trial) -> Trial:
    trial = Trial(name, kind="kill")
    for _ in range(TRIES):
        with tempfile.TemporaryDirectory(prefix="twicesafe-") as folder:
            if case.setup is not None:
                called(case.setup)
            order.store = f"sqlite:///{folder}/keys.db"
            first = _child(order)
            if first.error and first.retryable:
                continue
            trial.starts = 1
            if order.dies_at is not None:
                last = _child(msgspec.structs.replace(order, dies_at=None))
                if last.error and last.retryable:
                    continue
                trial.starts = 2
            else:
                last = first
            trial.state = case.state()
        if last.error:
            trial.fault = f"the last delivery fails: {last.error}"
        elif not same(clean.state, trial.state):
            trial.fault = difference(clean.state, trial.state)
        return trial
    trial.fault = (
        f"no answer within a lease of {BRIEF:g} s in {TRIES} tries: is the machine too busy?"
    )
    return trial


def _order_for(case: Case) -> Order:
    module, name = getattr(case.handler, "__module__", ""), case.name
    try:
        found = _resolve(module, name)
    except (ImportError, AttributeError):
        found = None
    if found is not case.handler or module == "__main__":
        raise ConfigurationError(
            f"kill=True runs the handler in another process, which cannot import {module}:{name}: "
            "use a function at the top of a module"
        )
    given = [list(case.args), case.kwargs]
    try:
        carried = msgspec.json.decode(msgspec.json.encode(given))
    except (TypeError, ValueError, msgspec.MsgspecError):
        carried = None
    if carried is None or not same(carried, given):
        raise ConfigurationError(
            "kill=True hands the arguments to another process as JSON, and these do not come out the "
            "same: use text, numbers, lists and objects"
        )
    path = [str(Path(entry).absolute()) for entry in sys.path]
    args, named = carried
    return Order(path, module, name, args, named, "", case.bare, case.lines, None)


def _resolve(module: str, name: str) -> Any:
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _child(order: Order) -> Done:
    """Run one delivery elsewhere. A child that was to die and did is done."""
    ran = subprocess.run(  # noqa: S603 - ourselves
        [sys.executable, "-m", __name__],
        input=msgspec.json.encode(order),
        capture_output=True,
        check=False,
    )
    if order.dies_at is not None and ran.returncode == -signal.SIGKILL:
        return Done()
    try:
        done = msgspec.json.decode(ran.stdout.splitlines()[-1], type=Done)
    except (IndexError, msgspec.MsgspecError):
        told = ran.stderr.decode(errors="replace").strip().splitlines()
        return Done(f"the process ended with status {ran.returncode}: {told[-1] if told else ''}")
    if order.dies_at is not None and not done.error:
        return Done("it never came to this point: it takes another way each time")
    return done


# --- in the child ----------------------------------------------------------------------------


class Doomed(Life):
    """A life whose death is real."""

    def __init__(self, dies_at: int | None) -> None:
        super().__init__()
        self._kills_at = dies_at

    @property
    def doomed(self) -> bool:
        return self._kills_at is not None

    def reach(self, name: str) -> None:
        super().reach(name)
        if len(self.passed) == self._kills_at:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    sys.path[:] = order.path
    handler = _resolve(order.module, order.name)
    with Receiver.open(order.store) as receiver:
        nothing = Case(handler, tuple(order.args), order.kwargs, receiver, None, None, order.bare,
                       order.lines, None, None, None)  # fmt: skip
        stage = Stage(nothing)
        stage.key = receiver.key("the call")
        answer = stage.deliver(Doomed(order.dies_at))
    done = Done()
    if isinstance(answer, Exception):
        retryable = isinstance(answer, TwicesafeError) and answer.retryable
        done = Done(f"{type(answer).__name__}: {answer}", retryable)
    sys.stdout.write("\n" + msgspec.json.encode(done).decode() + "\n")


if __name__ == "__main__":
    main()
