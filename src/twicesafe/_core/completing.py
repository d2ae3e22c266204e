"""The flows of the completer: find the runs that are due, and park those that no code can run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from .._values.keys import Key
from .._values.owner_token import new_owner
from ..errors import UsageError
from .commands import Flow
from .protocol import Claimed, Verdict
from .resolved_policy import ResolvedPolicy
from .run_requests import FOREVER, Due, DueRun, FailRun, FindDue, Signal, StartRun, Submit

__all__ = ["MOST", "find_due", "park_unusable", "send_signal", "submit"]

MOST: Final = 100
"""Runs that one look finds."""


def find_due(limit: int, pause: int, functions: Iterable[str]) -> Flow[list[DueRun]]:
    """Up to `limit` runs that are due. Looking moves on those that are not, so it may take several."""
    if type(limit) is not int or limit < 1:
        raise UsageError(f"limit={limit!r} is not valid: use 1 or more")
    found: list[DueRun] = []
    known = tuple(functions)
    while len(found) < limit:
        due: Due = yield FindDue(min(MOST, limit - len(found)), pause, known)
        found += due.runs
        if not due.more:
            break
    return found


def park_unusable(run: DueRun, policy: ResolvedPolicy, why: str) -> Flow[bool]:
    """Park a run whose code is gone, or whose arguments cannot be read. True: it is parked now."""
    key, owner = run.key, new_owner()
    answer: Claimed = yield StartRun(
        key,
        owner,
        policy.lease_ms,
        policy.max_attempts,
        function=run.function,
        arguments=run.arguments,
    )
    if answer.verdict is Verdict.WON:
        yield FailRun(key.id, owner, answer.fence, 0, answer.attempt, FOREVER, why[:200])
    return answer.verdict in (Verdict.WON, Verdict.PARKED)


def submit(ask: Submit) -> Flow[Claimed]:
    return (yield ask)  # type: ignore[no-any-return]


def send_signal(key: Key, name: str, value: bytes, retention: int) -> Flow[bool]:
    return (yield Signal(key.id, name, value, retention))  # type: ignore[no-any-return]
