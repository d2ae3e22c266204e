"""What may never happen in transaction mode: at a commit, at an answer, and in the end."""

from __future__ import annotations

from typing import Final

from ..violations import Rules

__all__ = ["INVARIANTS", "broken"]

INVARIANTS: Final = Rules(
    {
        # seen at the database
        "effect and record commit together": "no effect without its record, no record without its effect",
        "one effect per key and life": "one effect per key while its record is kept, or an operator's word",
        "half is held": "what a handler committed by itself is never done, and held from then on",
        "rolled back leaves no trace": "what others see changes by a commit, and by nothing else",
        "one at a time": "between a decision and its commit no other transaction decides about the same key",
        "replays are exact": "a replay is the committed result, byte for byte, while it is kept",
        "mismatch first": "another fingerprint is answered with a mismatch, before all else (P11)",
        "waits are true": "held, parked and forgotten are said only when it is so; expired is not said (P8)",
        "notes count failures": "a note adds one attempt, or the failure that is the answer; nothing else",
        "live work is kept": "what is half done, held or parked is never swept; results not early (P6)",
        "fences grow": "fences that were committed strictly increase per key, for ever (P3)",
        "operators are heard": "an operator's word is what the next delivery finds",
        # seen at the handlers and their consumers
        "only winners start": "a handler starts only in a transaction that entered its record",
        "closed stays closed": "what is done, held, parked or forgotten does not start",
        "every start has its cause": "a start beyond the first has the recorded cause, the true one (P12)",
        "poison parks": "failures are counted, once each, and no start passes max_attempts",
        "answers were committed": "what a consumer acknowledges was committed, or is known to its process",
        # over the whole schedule
        "two consumers both run": "what a consumer acknowledges was done for this consumer",
        "every delivery ends": "once faults stop, every delivery is acknowledged, and nothing stays open",
    }
)

broken = INVARIANTS.broken
