"""What may never happen to messages of a consumer: at the store, at the broker, in a process, in the end."""

from __future__ import annotations

from typing import Final

from ..violations import Rules

__all__ = ["INVARIANTS", "broken"]

INVARIANTS: Final = Rules(
    {
        # seen at the broker
        "recorded, then acknowledged": "a message is acknowledged only after it is recorded as done, or its dead letter is published and recorded",
        "most_held is kept": "a consumer holds at most most_held unsettled messages",
        "done is not dead": "a message that is recorded as done, or that another worker runs, is not published to the dead letters; unless its worker was late, and completed it after another one had given up on it",
        "dead letters repeat with a cause": "a dead letter is published again only after a crash, a lost lease or a lost answer",
        "innocents are not dead-lettered": "a message is dead-lettered because of its own attempts, or behind a dead one of its key; never because another message killed its worker",
        # seen at the handlers
        "done is not run again": "no handler starts for a message that is recorded as done",
        "starts have a cause": "a handler starts again only after a failure, a death or a lost lease",
        "late claims start nothing": "a claim whose lease may be over starts nothing (P7)",
        "max_attempts is kept": "a handler starts at most max_attempts times",
        "retries rest": "a failed attempt is not tried again before its back-off is over",
        "attempts count starts": "a claim that does not lead to a start is released before the next claim, so that it is not counted",
        "suspects run alone": "a message whose last worker died runs while nothing else runs in its process",
        "concurrency is kept": "at most `concurrency` handlers run in a process",
        "lanes are in order": "with order='key', a message of a partitioned log starts after all earlier ones of its key are done",
        "lanes wait": "with order='key', a message does not start while its process holds an earlier one of its key",
        "effects are applied once": "in transaction mode, the work of a message is committed at most once",
        "revoked starts nothing": "after a partition was taken away, none of its messages starts",
        "released when nothing runs": "a revoked partition is released once, when none of its messages runs",
        # over the whole schedule
        "consumers pause": "a consumer that has nothing to do does not spin",
        "nothing is lost": "in the end every message is done or dead-lettered, and settled",
        "poison is dead-lettered": "in the end a message that kills its worker every time is in the dead letters",
        "consumers end": "a consumer that is asked to stop ends",
    }
)

broken = INVARIANTS.broken
