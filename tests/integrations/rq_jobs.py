"""The jobs that the tests enqueue; RQ imports them by name. The killed worker's receiver is here, too."""

from __future__ import annotations

import os
import signal
from typing import Any

from rq import Retry as RqRetry
from rq import get_current_job
from rq.timeouts import JobTimeoutException

from twicesafe import Policy, Receiver, current_claim
from twicesafe.consumers import DeadLetter, Retry
from twicesafe.integrations.rq import idempotent_job

RAN: list[Any] = []


def attempt() -> int:
    claim = current_claim()
    assert claim is not None
    return claim.attempt


def charge(cents: int) -> dict[str, int]:
    RAN.append(cents)
    return {"cents": cents, "run": len(RAN)}


async def charge_async(cents: int) -> int:
    RAN.append(cents)
    return cents


def current() -> str:
    job = get_current_job()
    assert job is not None
    return str(job.id)


def broken() -> None:
    RAN.append(attempt())
    raise ValueError("no")


def too_long() -> None:
    RAN.append(attempt())
    raise JobTimeoutException("Task exceeded maximum timeout value (180 seconds)")


def ask() -> Any:
    RAN.append(attempt())
    return RqRetry(max=5) if len(RAN) < 3 else "answered"


def ask_twice() -> Any:
    RAN.append(attempt())
    return RqRetry(max=2) if len(RAN) < 3 else "answered"


def choose(how: str) -> str:
    RAN.append(how)
    if how == "dead":
        raise DeadLetter("no address")
    if RAN.count(how) == 1:
        raise Retry(after=0)
    return "done"


def ship(order: dict[str, str]) -> int:
    RAN.append(order["id"])
    return len(RAN)


def fatal() -> list[object]:
    claim = current_claim()
    assert claim is not None
    if claim.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return [claim.attempt, str(claim.cause)]


if "STORE" in os.environ:
    receiver = Receiver.open(os.environ["STORE"], policy=Policy(lease=0.5))
    Job = idempotent_job(receiver)
