"""The circuit of a breaker: a state machine without a clock, a lock or a store.

    closed      ── `failures` failed requests in a row ──→   open
    open        ── `rest` is over: one claim tries ───────→   half open
    half open   ── it is answered ────────────────────────→   closed
    half open   ── it fails: `rest` doubles ──────────────→   open

Any answer of the store, to any request, closes the circuit: the store works again.
"""

from __future__ import annotations

import enum

import msgspec

__all__ = ["Circuit", "CircuitState"]


class CircuitState(enum.StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Circuit(msgspec.Struct):
    """Every method takes the time in seconds, and returns whether the state has changed."""

    failures: int
    """Failures in a row that open it."""
    rest: float
    longest_rest: float
    state: CircuitState = CircuitState.CLOSED
    failed_in_a_row: int = 0
    resting_until: float = 0.0
    next_rest: float = 0.0

    def may_claim(self, now: float) -> bool:
        """Whether a claim may ask the store now. In the half-open state one may, and it tries."""
        if self.state is CircuitState.CLOSED:
            return True
        if now < self.resting_until:
            return False
        # The claim that tries may never come back: after another rest the next one tries.
        self.state, self.resting_until = CircuitState.HALF_OPEN, now + self.next_rest
        return True

    def is_resting(self, now: float) -> bool:
        return self.state is not CircuitState.CLOSED and now < self.resting_until

    def failed(self, now: float) -> bool:
        self.failed_in_a_row += 1
        if self.state is CircuitState.OPEN:
            return False  # a late failure of a request that was sent before
        if self.state is CircuitState.CLOSED:
            if self.failed_in_a_row < self.failures:
                return False
            self.next_rest = self.rest
        else:
            self.next_rest = min(2 * self.next_rest, self.longest_rest)
        self.state, self.resting_until = CircuitState.OPEN, now + self.next_rest
        return True

    def answered(self) -> bool:
        changed = self.state is not CircuitState.CLOSED
        self.state, self.failed_in_a_row = CircuitState.CLOSED, 0
        return changed
