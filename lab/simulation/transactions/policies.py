"""The policies, keys and fingerprints that plans choose from: made once, because schedules are many."""

from __future__ import annotations

from itertools import product
from typing import Final

from twicesafe import Key, Policy
from twicesafe.inbox._base import Results

__all__ = ["CONSUMERS", "FINGERPRINTS", "KEYS", "LONGEST_WAIT", "POLICIES", "RefusedError"]

LONGEST_WAIT: Final = 2.0


class RefusedError(Exception):
    """The failure that handlers of the lab mean as their answer (``remember=``)."""


RESULTS: Final[tuple[Results, ...]] = ("required", "required", "optional")

POLICIES: Final[list[tuple[Policy, Results]]] = [
    (
        Policy(
            retention=retention,
            max_attempts=attempts,
            in_flight="wait" if wait else "reject",
            wait=wait,
            remember=(RefusedError,),
            max_result_bytes=200,
        ),
        results,
    )
    for retention, attempts, wait, results in product(
        (0.6, 3.0, 60.0), (1, 2, 3), (0.0, 0.2, LONGEST_WAIT), RESULTS
    )
]

CONSUMERS: Final = ("billing", "shipping")
KEYS: Final = [[Key(f"m-{n}", scope=(consumer,)) for n in range(2)] for consumer in CONSUMERS]
"""By consumer and message: what an operator calls them."""
FINGERPRINTS: Final = (None, b"1" * 32, b"2" * 32)
