"""Requests of durable runs, in the words of the rules: `started`, `step`, `suspend`, `signal`."""

from __future__ import annotations

from typing import Any, Final

from ..._core.durable.run_requests import (
    FOREVER,
    FailRun,
    LoadRun,
    RecordStep,
    Run,
    Signal,
    StartRun,
    Suspend,
)
from ..._core.protocol import Verdict
from ..._values.keys import Key
from ..._values.steps import Step
from .bench import Script
from .requests import HOUR, KEY, A, Mine

__all__ = ["PRINT", "failed", "signal", "start", "started", "step", "steps_of", "suspend"]

PRINT: Final = b"p" * 33


def start(
    by: bytes, key: Key = KEY, *, lease: int = HOUR, max_attempts: int = 5, **more: Any
) -> StartRun:
    return StartRun(
        key, by, lease, max_attempts, function="shop.checkout", arguments=b"j[1]", **more
    )


def started(by: bytes = A, key: Key = KEY, **settings: Any) -> Script[Mine]:
    answer = yield start(by, key, **settings)
    assert answer.verdict is Verdict.WON, answer
    return Mine(key.id, by, answer.fence, answer)


def step(mine: Mine, name: str = "charge", result: bytes | None = b"r", **more: Any) -> RecordStep:
    settings = {"kind": "run", "fingerprint": PRINT, "result": result, **more}
    return RecordStep(mine.id, mine.owner, mine.fence, name, **settings)


def suspend(mine: Mine, delay: int = HOUR, *waits: str) -> Suspend:
    return Suspend(mine.id, mine.owner, mine.fence, delay, waits)


def signal(name: str = "approval", value: bytes = b"jtrue", key: Key = KEY) -> Signal:
    return Signal(key.id, name, value, HOUR)


def steps_of(key: Key = KEY) -> Script[dict[str, Step]]:
    run: Run | None = yield LoadRun(key.id)
    return {} if run is None else {each.name: each for each in run.steps}


def failed(mine: Mine, **more: Any) -> FailRun:
    return FailRun(mine.id, mine.owner, mine.fence, 0, 5, FOREVER, "Boom", **more)
