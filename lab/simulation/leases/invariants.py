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
        "same owner, same fence": "a claim repeated by its present owner gets the same fence (P2)",
        "fences grow": "the fences of a key strictly increase, for ever (P3)",
        "stale owners change nothing": "only the present owner with its fence changes a row (P3)",
        "the owner may act": "the present owner may renew, complete, fail and abandon (P4)",
        "rows begin with a claim": "nothing but a claim creates a row (P4)",
        "one result": "each life of a key has at most one recorded result (mode 1)",
        "replays are exact": "a replay is the recorded result, byte for byte, while it is kept",
        "expiry is seen": "a record past its retention is never replayed, swept or not (P8)",
        "live work is kept": "a sweep removes no work in progress, held or parked, and no result too early (P6)",
        "mismatch first": "a different fingerprint is a mismatch; this is checked first (P11)",
        "every start has a cause": "every start after the first has a recorded cause, and it is the true one (P12)",
        "attempts count": "attempts are counted at the claim and never exceed max_attempts",
        "attempts count starts": "a batch counts no claim that cannot start yet; what was tried before starts under a claim that counts",
        "suspects run alone": "in a batch, a message whose last worker died in a counted start runs while no other one does",
        "hold means once": "under hold, a key starts again only after an operator's act or a known failure",
        "closed keys stay closed": "a held, parked or forgotten key starts only after an operator's act",
        "waiting answers are true": "a caller gets busy, resting, held or parked only while that is true",
        "max_lease ends it": "no lease ends later than max_lease after its claim (P7)",
        "transitions follow the table": "every change of a row is in the table of transitions",
        # seen at the handlers and their callers
        "only winners start": "a handler starts only under a claim that the store granted, once per fence",
        "late answers start nothing": "a claim answer older than its lease starts nothing (P7)",
        "leases are kept": "a running handler keeps its claim, even after one failed renewal (P7)",
        "only unstarted claims are abandoned": "a claim is abandoned only if its handler never started",
        "an unanswered claim is repeated unchanged": "an unanswered claim is repeated with the same owner (P10)",
        "answers are recorded": "an answer is recorded before a caller gets it",
        "fenced effects": "a resource that compares fences never refuses the one live claim",
        "fail closed": "without the store's answer no handler starts, unless outage='run' (P9)",
        "refused is done": "a result that the store refuses or never receives soon ends its key without a result",
        "results are kept": "an outage alone never loses a result that the store would have taken",
        # over the whole schedule
        "callers are answered": "no living caller waits for ever",
        "every key ends": "once faults stop, a retried key ends within lease + handler time + 1 s",
    }
)

broken = INVARIANTS.broken
