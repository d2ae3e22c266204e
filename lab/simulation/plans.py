"""What plans of all studies are made of: things that go wrong, as plain data."""

from __future__ import annotations

import msgspec

__all__ = ["Fault", "Incident"]


class Fault(msgspec.Struct, frozen=True):
    """What happens to the nth of something."""

    nth: int
    kind: str
    seconds: float = 0.0
    """How late, or how long."""


class Incident(msgspec.Struct, frozen=True):
    """What happens at a moment."""

    at: float
    kind: str
    target: int = 0
    """Whom or what it meets: a process, a key."""
    seconds: float = 0.0
