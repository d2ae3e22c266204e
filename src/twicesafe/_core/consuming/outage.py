"""While the broker or the store does not answer: a pause that grows, and an event for each failure."""

from __future__ import annotations

from typing import Final

from ... import events as ev
from ..._values.keys import chance
from ..._values.policy import Backoff
from ...errors import (
    CorruptRecordError,
    SchemaVersionError,
    StoreError,
    UsageError,
    text_of,
)
from ..call import cause_of
from .intake import Intake
from .state import ConsumerState

__all__ = ["REST", "Outage"]

REST: Final = Backoff(first=0.1, factor=2, most=10, jitter=0.5)
"""The pause before the broker or the store is asked again."""


class Outage:
    """Until when nothing new is asked of the broker and the store."""

    def __init__(self, state: ConsumerState, intake: Intake) -> None:
        self._state, self._intake = state, intake
        self._failures = 0
        self.until = 0.0

    @property
    def lasts(self) -> bool:
        return self._state.clock() < self.until

    def is_over(self) -> None:
        """Messages came: the next pause is a short one again."""
        self._failures = 0

    def begins(self, what: str, error: BaseException | None) -> None:
        """This failed. The pause starts, or starts again."""
        state = self._state
        self._failures += 1
        delay = REST.delay(self._failures, chance(state.owner, self._failures))
        self.until = state.clock() + delay
        self.tell(what, error, delay)

    def tell(self, what: str, error: BaseException | None, delay: float) -> None:
        """An event for this failure. It is tried again after the delay; alone, it begins no pause."""
        state = self._state
        said = what if error is None else cause_of(error)
        if isinstance(error, (UsageError, SchemaVersionError, CorruptRecordError)):
            said = text_of(error)  # it says what to change
        if isinstance(error, StoreError):
            state.notify(ev.StoreFailed(None, what, said))
        else:
            state.notify(ev.BrokerFailed(len(self._intake.held), f"{what}: {said}", delay))
