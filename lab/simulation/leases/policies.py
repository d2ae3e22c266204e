"""The policies, keys and fingerprints that plans choose from: made once, because schedules are many."""

from __future__ import annotations

from itertools import product
from typing import Final

from twicesafe import Key, Policy
from twicesafe._core.resolved_policy import ResolvedPolicy
from twicesafe._values.policy import Backoff

__all__ = ["FINGERPRINTS", "KEYS", "LONGEST_REST", "POLICIES", "REFEREE", "RefusedError"]

LEASE: Final = 1.0
MAX_LEASE: Final = 2.5
LONGEST_REST: Final = 0.4


class RefusedError(Exception):
    """The failure that handlers of the lab mean as their answer (``remember=``)."""


def _policy(**settings: object) -> ResolvedPolicy:
    return ResolvedPolicy(
        Policy(
            lease=LEASE,
            max_lease=MAX_LEASE,
            backoff=Backoff(first=0.05, most=LONGEST_REST),
            remember=(RefusedError,),
            max_result_bytes=200,
            **settings,  # type: ignore[arg-type]
        )
    )


POLICIES: Final = [
    _policy(
        takeover=takeover,
        retention=retention,
        max_attempts=attempts,
        in_flight=in_flight,
        timeout=timeout,
        wait=2.0,
        max_waiters=waiters,
        outage=outage,
    )
    for takeover, retention, attempts, (in_flight, waiters), (timeout, outage) in product(
        ("retry", "retry", "hold"),
        (0.8, 3.0, 60.0),
        (1, 3, 5),
        (("wait", 100), ("wait", 1), ("reject", 100)),
        ((None, "refuse"), (None, "refuse"), (0.3, "refuse"), (None, "run")),
    )
]

REFEREE: Final = _policy(retention=60.0, max_attempts=9, wait=60.0)
"""The policy of the last delivery of each key, which must find an end."""

KEYS: Final = [Key(f"key-{number}", scope=("lab",)) for number in range(3)]
FINGERPRINTS: Final = (None, b"1" * 32, b"2" * 32)
