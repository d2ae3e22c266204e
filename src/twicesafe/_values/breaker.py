"""Breaker: the settings of a circuit breaker, validated when created."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .settings import Duration, expect, is_whole, seconds, suggesting

__all__ = ["Breaker"]


@suggesting("breaker setting")
@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """When a receiver stops asking a store that fails, for how long, and who answers meanwhile."""

    failures: int = 5
    """Failed requests in a row after which the store is not asked for a while."""
    rest: Duration = 1.0
    """Seconds until one claim may try again. Each time that it fails, the rest doubles."""
    longest_rest: Duration = 30.0
    """The longest rest."""
    fallback: Any = None
    """The URL of another store, or a store, for claims meanwhile; None: the policy's `outage` applies.
    Duplicates are then recognised only among the deliveries that the fallback has seen."""

    def __post_init__(self) -> None:
        expect(is_whole(self.failures), "failures", self.failures, "use 1 or more")
        for name in ("rest", "longest_rest"):
            value = seconds(getattr(self, name), name)
            expect(value > 0, name, value, "use more than 0 seconds")
            object.__setattr__(self, name, value)
        expect(
            seconds(self.rest) <= seconds(self.longest_rest),
            "longest_rest",
            self.longest_rest,
            "use at least rest",
        )
