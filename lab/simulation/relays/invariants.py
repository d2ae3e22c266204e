"""What may never happen to messages of an outbox: at the broker, at the store, and in the end."""

from __future__ import annotations

from typing import Final

from ..violations import Rules

__all__ = ["INVARIANTS", "broken"]

INVARIANTS: Final = Rules(
    {
        # seen at the broker
        "same message": "what is published was committed, and has its id and its bytes at every try",
        "lanes are in order": "a message is first published when all before it in its lane were",
        "one group of a lane": "of a lane, one message at most is under way in a relay; if its publisher keeps order, one group, in order",
        "one batch under way": "what is under way and what is not settled is one batch at most",
        "not past its deadline": "a relay whose lease may be over, counted from the sending, sends nothing",
        "only from its slots": "a relay sends only what is in slots that the store says are its own",
        "gone is gone": "what its holder settled, or an operator skipped, is not sent again",
        "repeats have a cause": "a death, a lost lease, a lost answer or settlement, and nothing else",
        "one batch repeated": "for each such cause, one batch at most; the store's clock was not set",
        # seen at the store
        "one hand": "a slot changes hands only when the relay before publishes no more",
        "fences grow": "a slot that changes hands has a larger fence",
        "given back empty": "a slot is given back when nothing of it is under way or unsettled",
        "only published rows go": "a row is deleted after it was published, and only by the relay that published it",
        "strangers note nothing": "only the holder of a slot, with its fence, notes a refusal",
        "refusals count once": "each refusal counts once, for its own message; max_attempts of them park",
        "rests are kept": "a lane that was refused is not fetched before its rest is over",
        "said again, nothing new": "a settlement that is said again does not undo an operator's word",
        # over the whole schedule
        "others go on": "once faults stop, a lane that was parked or rests delays no other",
        "nothing is lost": "in the end all that was committed was published, or skipped by an operator",
        "nothing is left": "in the end nothing waits, rests or is parked, and no trouble is remembered",
        "stopped means settled": "a relay that was told to stop settles what was acknowledged, then leaves",
        "relays end": "a relay that is told to stop ends",
    }
)

broken = INVARIANTS.broken
