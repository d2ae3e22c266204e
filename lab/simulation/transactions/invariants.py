"""What may never happen in transaction mode: at a commit, at an answer, and in the end."""

from __future__ import annotations

from typing import Final

from ..violations import Rules

__all__ = ["INVARIANTS", "broken"]

INVARIANTS: Final = Rules(
    {
        # seen at the database
        "effect and record commit together": "no effect without its record, no record without its effect",
        "one effect per key and life": "one effect per key while its record is kept, unless an operator releases it",
        "half-done work is held": "work that a handler committed by itself is never recorded as done; its key is held, unless the handler rolled back first",
        "rolled back leaves no trace": "other connections see only committed changes",
        "one at a time": "between a decision and its commit, no other transaction decides on the same key",
        "replays are exact": "a replay is the committed result, byte for byte, while it is kept",
        "mismatch first": "a different fingerprint is a mismatch; this is checked first (P11)",
        "waiting answers are true": "a caller gets held, parked or forgotten only while that is true, and never after expiry (P8)",
        "failures are counted": "recording a failure adds one attempt, or stores it as the answer; nothing else",
        "live work is kept": "a sweep removes no half-done, held or parked record, and no result too early (P6)",
        "fences grow": "the committed fences of a key strictly increase, for ever (P3)",
        "operators decide": "the next delivery sees what an operator decided",
        # seen at the handlers and their consumers
        "only winners start": "a handler starts only in a transaction that has inserted its record",
        "closed keys stay closed": "a done, held, parked or forgotten key does not start",
        "every start has a cause": "every start after the first has a recorded cause, and it is the true one (P12)",
        "poison parks": "each failure counts once, and attempts never exceed max_attempts",
        "answers were committed": "a consumer acknowledges only what was committed or what its process knows",
        # over the whole schedule
        "two consumers both run": "a consumer acknowledges only work that was done for that consumer",
        "every delivery ends": "once faults stop, every delivery is acknowledged, and nothing stays open",
    }
)

broken = INVARIANTS.broken
