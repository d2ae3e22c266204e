"""What may never happen to messages of an outbox: at the broker, at the store, and in the end."""

from __future__ import annotations

from typing import Final

from ..violations import Rules

__all__ = ["INVARIANTS", "broken"]

INVARIANTS: Final = Rules(
    {
        # seen at the broker
        "same message": "every published message was committed; each try has the same id and bytes",
        "lanes are in order": "a message is first published after all earlier ones of its lane",
        "one group of a lane": "a relay sends one message of a lane at a time; one ordered group if the publisher keeps order",
        "one batch under way": "messages being sent or not yet settled are at most one batch",
        "not past its deadline": "a relay sends nothing once its lease, counted from when it asked, may be over",
        "only from its slots": "a relay sends only messages of the slots that the store gave it",
        "settled or skipped is never sent again": "a message that was settled or skipped is not sent again",
        "repeats have a cause": "only a crash, a lost lease, a lost answer or a lost settlement repeats a message",
        "one batch repeated": "each such cause repeats one batch at most, if the store's clock was not set",
        # seen at the store
        "one relay per slot": "a slot gets a new holder only after the previous one has stopped publishing",
        "fences grow": "a new holder of a slot has a larger fence",
        "slots are released when nothing is pending": "a slot is released only when none of its messages is being sent or unsettled",
        "only published rows go": "a row is deleted after it was published, by the relay that published it",
        "only the holder records refusals": "only the holder of a slot, with its fence, records a refusal",
        "refusals count once": "each refusal counts once, for its own message; max_attempts refusals park the lane",
        "rests are kept": "a lane is not fetched while it rests after a refusal",
        "a repeated settlement changes nothing": "a repeated settlement does not undo an operator's act",
        # over the whole schedule
        "other lanes go on": "once faults stop, a parked or resting lane delays no other lane",
        "nothing is lost": "in the end every committed message was published, or skipped by an operator",
        "nothing is left": "in the end no message waits, rests or is parked, and no refusal is on record",
        "stopped means settled": "a stopping relay settles what the broker acknowledged before it ends",
        "relays end": "a relay that is asked to stop ends",
    }
)

broken = INVARIANTS.broken
