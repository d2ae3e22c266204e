"""Stores that break one rule each, as real ones did: the suite is worth what it finds in these.

Each is a right store with one thing wrong, and names the test that must reject it. Where such a
thing was seen in the field, the text says at whom.
"""

from __future__ import annotations

from tests.conformance.broken import (
    batches,
    claims,
    completion,
    failures,
    leases,
    operators,
    owners,
    retention,
)
from tests.conformance.broken.base import BROKEN, Broken, Misled

__all__ = [
    "BROKEN",
    "Broken",
    "Misled",
    "batches",
    "claims",
    "completion",
    "failures",
    "leases",
    "operators",
    "owners",
    "retention",
]
