"""The policies and keys that plans choose from: made once, because schedules are many."""

from __future__ import annotations

from itertools import product
from typing import Final

from twicesafe import Key, Policy
from twicesafe._core.resolved_policy import ResolvedPolicy
from twicesafe._values.policy import Backoff

__all__ = ["KEYS", "LEASE", "POLICIES", "BoomError"]

LEASE: Final = 1.0
MAX_LEASE: Final = 2.5


class BoomError(Exception):
    """What steps of the lab raise."""


POLICIES: Final = [
    (
        ResolvedPolicy(
            Policy(
                lease=LEASE,
                max_lease=MAX_LEASE,
                backoff=Backoff(first=0.05, most=0.4),
                max_attempts=attempts,
                retention=retention,
                wait=wait,
            )
        ),
        holds,
    )
    for attempts, retention, wait, holds in product(
        (1, 2, 3), (0.8, 60.0, 60.0), (0.0, 0.3), (False, False, True)
    )
]
"""With whether an interrupted step holds the run."""

KEYS: Final = [Key(f"run-{number}", scope=("lab",)) for number in range(2)]
