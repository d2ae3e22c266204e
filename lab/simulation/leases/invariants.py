"""What may never happen in lease mode: at the store, at the handlers and their callers, and in the end."""

from __future__ import annotations

from typing import Final

from ..violations import Rules

__all__ = ["INVARIANTS", "broken"]

INVARIANTS: Final = Rules(
    {
        # seen at the store
        "one live claim": "at most one claim of a key is live at any moment of the store's time",
        "won has a row": "a claim that was won has a row behind it, with its owner and fence (P1)",
        "same owner, same fence": "a claim that is asked again by its present owner gets its fence (P2)",
        "fences grow": "fences strictly increase per key, for ever (P3)",
        "stale owners change nothing": "only the present owner with its fence changes a row (P3)",
        "owners are heard": "the present owner may renew, complete, fail and abandon (P4)",
        "rows begin with a claim": "nothing but a claim creates a row (P4)",
        "one result": "at most one result is recorded per key and life (mode 1)",
        "replays are exact": "a replay is the recorded result, byte for byte, while it is kept",
        "expiry is seen": "what is past its retention is not answered, whatever the sweep did (P8)",
        "live work is kept": "work in progress, held or parked is never swept; results not early (P6)",
        "mismatch first": "another fingerprint is answered with a mismatch, before all else (P11)",
        "every start has its cause": "a start beyond the first has the recorded cause, the true one (P12)",
        "attempts count": "attempts are counted at the claim and never pass max_attempts",
        "hold means once": "under hold, nothing but an operator or a known failure lets a key start again",
        "closed stays closed": "a held, parked or forgotten key starts only after an operator's word",
        "waits are true": "busy, resting, held and parked are said only when it is so",
        "max_lease ends it": "no lease reaches past max_lease, counted from the claim (P7)",
        "the table holds": "every change of a row stands in the table of transitions",
        # seen at the handlers and their callers
        "only winners start": "a handler starts only under a claim that the store granted, once per fence",
        "late answers start nothing": "a claim answer older than its lease starts nothing (P7)",
        "leases are kept": "a handler that lives keeps its claim, also over one failed renewal (P7)",
        "given back, not started": "a claim is abandoned only if its handler never started",
        "same words again": "an unanswered claim is asked again with the same owner (P10)",
        "answers are recorded": "what a caller gets as the answer was recorded before",
        "fenced effects": "a resource that compares fences never refuses the one live claim",
        "fail closed": "without an answer of the store the handler does not start, unless told so (P9)",
        "refused is done": "what the store refuses, or never gets, ends its key without it, and soon",
        "results are kept": "an outage alone never costs a result that the store would have taken",
        # over the whole schedule
        "callers are answered": "no caller that lives is left waiting for ever",
        "every key ends": "once faults stop, a retried key ends within lease + handler time + 1 s",
    }
)

broken = INVARIANTS.broken
