"""What a publisher's answers cause: a message is published, its lane backs off or is parked, or all wait.

Outage or refusal? If the broker accepts nothing, no message is to blame, and no attempt is counted.
But a message on which the broker closes the connection looks like an outage every time, and would
block all lanes forever. So when an outage repeats, messages are sent one by one. A message that
fails alone again is to blame if, since the last outage, the broker accepted another message or
(where `blames` allows it) answered a check.

Nothing is sent or written here: `relay_publish` does both.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Any, Final

from ... import events
from ..._values.keys import chance
from ...errors import BrokerUnavailableError, TwicesafeError, text_of
from .publisher import NOT_TRIED, NotNow
from .relay_lease import REST, RelayState
from .requests import Pending, Setback, Settle

__all__ = ["RelayAnswers"]

TOGETHER: Final = 0.25
"""Seconds that a published row may wait to be settled together with later ones."""

OUTAGES: Final = 3
"""Consecutive failures after which `drain` treats it as an outage and ends."""

NOT_COUNTED: Final = 4
"""A message that is not to blame backs off as if it had been refused this many times."""


class RelayAnswers:
    """The rows that a relay has fetched, and what their answers change about them."""

    def __init__(self, state: RelayState) -> None:
        self.state = state
        self.lanes: dict[bytes, deque[Pending]] = {}
        """Rows that are fetched or being published: by lane, in order."""
        self.ready: deque[bytes] = deque()
        """Lanes with rows, none of which is being published."""
        self.under_way: dict[int, list[Pending]] = {}
        self.rows_under_way = 0
        self.todo = Settle(state.owner, [], {}, [], {})
        self.owed: set[int] = set()
        """Slots with unsettled rows: if released now, the next holder would publish them again."""
        self.settle_by = 0.0
        self.outages = 0
        self.down_until = 0.0
        self.alone: Counter[bytes] = Counter()
        """By lane, how many messages to send one by one: a group with them failed."""
        self.suspects: Counter[bytes] = Counter()
        """Outages per lane since the broker last accepted a message of that lane."""
        self.took = self.answered = False
        """Since the last outage: the broker accepted a message; it answered a check."""
        self.doubt = False
        """After an outage: check the broker before sending more."""
        self.compare = False
        """After an outage: fetch other messages before the suspects are sent again."""

    def _handle_answers(self, ended: Sequence[tuple[int, Any]]) -> None:
        for ticket, answers in ended:
            del self.state.calls[ticket]
            if ticket in self.under_way:  # else it was given up: its rows are sent again
                self._call_ended(ticket, answers)

    def _call_ended(self, ticket: int, answers: Any) -> None:
        rows = self.under_way.pop(ticket)
        if not rows:
            self._broker_answered(answers)
            return
        self.rows_under_way -= len(rows)
        if not isinstance(answers, Exception):
            self._sort_out(rows, answers)
        elif len(rows) > 1:
            self._broker_failed(rows, answers)
        else:  # alone, it may be to blame
            self._sort_out(rows, [answers])
        self._make_ready(rows)

    def _sort_out(self, rows: Sequence[Pending], answers: Sequence[Any]) -> None:
        stopped: set[bytes] = set()
        away: list[Pending] = []
        outage: BrokerUnavailableError | None = None
        for row, answer in zip(rows, answers, strict=True):
            if row.lane in stopped:
                continue
            if answer is None:
                self._published(row)
                continue
            stopped.add(row.lane)
            if isinstance(answer, BrokerUnavailableError):
                away.append(row)
                outage = outage or answer
            elif answer is not NOT_TRIED:
                self._refused(row, answer, counts=not isinstance(answer, NotNow))
        if _nothing_sent(answers):
            outage = outage or BrokerUnavailableError("the publisher sent none of its messages")
            away = list(rows)
        if outage is None:
            return
        if len(rows) == 1 and self._is_to_blame(rows[0], outage):
            self.took = self.answered = False
            self._refused(rows[0], outage)
        else:
            self._broker_failed(away, outage)

    def _is_to_blame(self, row: Pending, error: BrokerUnavailableError) -> bool:
        """The message failed before and fails alone again, although the broker is up."""
        if error.blames == "none" or not self.suspects[row.lane]:
            return False
        return self.took or (self.answered and error.blames == "alone")

    def _broker_answered(self, error: Exception | None) -> None:
        """A check has ended."""
        if error is None:
            self.doubt, self.answered = False, True
        else:
            self.state.outage = (
                error
                if isinstance(error, TwicesafeError)
                else BrokerUnavailableError(f"the broker cannot be checked: {_named(error)}")
            )
            self._rest(0, error)

    def _make_ready(self, rows: Sequence[Pending]) -> None:
        for lane in dict.fromkeys(row.lane for row in rows):
            if self.lanes.get(lane):
                self.ready.append(lane)
            else:
                self.lanes.pop(lane, None)

    def _broker_failed(self, rows: Sequence[Pending], error: Exception) -> None:
        """No message is known to be to blame, so no attempt is counted: back off, then retry."""
        state = self.state
        self.took = self.answered = False
        if isinstance(error, BrokerUnavailableError):
            self.doubt = self.compare = True
            if error.blames == "none":
                self.suspects.clear()
            else:
                lanes = {row.lane for row in rows}
                self.suspects.update(lanes)
                if any(self.suspects[lane] > 1 for lane in lanes):
                    self.alone |= Counter(row.lane for row in rows)
            if error.blames == "none" or self.outages + 1 >= OUTAGES:
                state.outage = error
        else:
            self.alone |= Counter(row.lane for row in rows)
        self._rest(len(rows), error)

    def _rest(self, count: int, error: Exception) -> None:
        state = self.state
        self.outages += 1
        delay = REST.delay(self.outages, chance(state.owner, self.outages))
        self.down_until = state.clock() + delay
        state.notify(events.BrokerFailed(count, _named(error), delay))

    def _published(self, row: Pending) -> None:
        self.outages = 0
        self.took, self.doubt = True, False
        self.suspects.pop(row.lane, None)
        if self.alone:
            self.alone -= Counter((row.lane,))
        waiting = self.lanes.get(row.lane)
        if waiting and waiting[0].n == row.n:
            waiting.popleft()
        if not self.todo.done:
            self.settle_by = self.state.clock() + TOGETHER
        self.todo.done.append(row.n)
        self.owed.add(row.slot)
        if row.last:
            self.todo.cured[row.lane] = row.n

    def _refused(self, row: Pending, error: Exception, counts: bool = True) -> None:
        """Back off the lane, or park it with all its fetched rows; other lanes continue."""
        state, attempts = self.state, row.attempts + counts
        mine = self.lanes.get(row.lane, deque((row,)))
        self._forget(row.lane)
        park = counts and attempts >= state.max_attempts
        rest = state.backoff.delay(attempts if counts else NOT_COUNTED, chance(state.owner, row.n))
        where = (row.slot, row.fence, row.lane, row.n)
        said = Setback(*where, attempts, round(1000 * rest), _said(error), park, counts)
        self.todo.setbacks.append(said)
        self.owed.add(row.slot)
        if park:
            self.todo.aside.setdefault(row.lane, []).extend(other.n for other in mine)
        if not counts:
            state.not_now = BrokerUnavailableError(text_of(error), blames="none")
            state.notify(events.BrokerFailed(1, text_of(error), rest))
            return
        message = row.message
        kind = events.LaneParked if park else events.PublishFailed
        state.notify(kind(message.id, message.topic, attempts, _named(error)))

    def _forget(self, lane: bytes) -> None:
        """Its rows are fetched again later, or by another relay."""
        self.lanes.pop(lane, None)
        self.suspects.pop(lane, None)
        self.alone.pop(lane, None)

    def _outage(self, what: str, error: TwicesafeError) -> None:
        state = self.state
        state.outage = error
        self.outages += 1
        state.notify(events.StoreFailed(None, what, str(error)))
        delay = REST.delay(self.outages, chance(state.owner, self.outages))
        self.down_until = state.clock() + delay


def _nothing_sent(answers: Sequence[Any]) -> bool:
    """No message was accepted or refused: the call says something about the broker only."""
    return None not in answers and all(
        one is NOT_TRIED or isinstance(one, BrokerUnavailableError) for one in answers
    )


def _said(error: Exception) -> str:
    """The error text that is stored with the message for the operator."""
    return f"{type(error).__name__}: {text_of(error)}".replace("\0", " ")[:500]


def _named(error: Exception) -> str:
    """The error text for logs: a foreign error's text may contain message content."""
    return text_of(error) if isinstance(error, TwicesafeError) else type(error).__name__
