"""Retry budget: limits the load that retries add, so that they do not keep a failing server down.

A token bucket: every call adds a fraction of a token, every retry takes a whole one. While most calls
succeed there are enough tokens for every retry; when all fail, retries are at most `ratio` of the
calls. Use one budget per server and process: share it between the clients of that server.
"""

from __future__ import annotations

from typing import Any

from .._forking import RenewedLock
from .._values.settings import expect
from ..errors import ConfigurationError

__all__ = ["Budget", "budget_of"]


def budget_of(given: Budget | None) -> Budget:
    """The budget that a client was given, or one of its own."""
    if given is None:
        return Budget()
    expect(isinstance(given, Budget), "budget", given, "use a Budget(…)")
    return given


class Budget:
    """How many retries clients may add to a server's load. Thread-safe."""

    __slots__ = ("_lock", "_tokens", "ratio", "reserve")

    def __init__(self, ratio: float = 0.2, reserve: float = 10) -> None:
        settings: tuple[tuple[str, Any, float], ...] = (
            ("ratio", ratio, 1),
            ("reserve", reserve, 1e9),
        )
        for name, value, most in settings:
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not number or not 0 <= value <= most:
                raise ConfigurationError(
                    f"budget.{name}={value!r} is not valid: use a number from 0 to {most:g}"
                )
        self.ratio = ratio
        """Retries per call, in the long run."""
        self.reserve = reserve
        """The size of the bucket, which is full at the start."""
        self._tokens = float(reserve)
        self._lock = RenewedLock()

    @property
    def left(self) -> float:
        """Retries that are possible now."""
        return self._tokens

    def earn(self) -> None:
        """A call begins."""
        with self._lock.now:
            self._tokens = min(self._tokens + self.ratio, float(self.reserve))

    def spend(self) -> bool:
        """Take one token; False: no retry is allowed now."""
        with self._lock.now:
            if self._tokens < 1:
                return False
            self._tokens -= 1
            return True

    def __reduce__(self) -> tuple[type[Budget], tuple[float, float]]:
        """A copy, in another process above all, is full: it has its own tokens."""
        return Budget, (self.ratio, self.reserve)

    def __repr__(self) -> str:
        return f"<Budget {self._tokens:.1f} of {self.reserve:g}>"
