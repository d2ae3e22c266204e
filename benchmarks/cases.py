"""What is measured: all cases, in the order of the report."""

from __future__ import annotations

from .case import Case
from .embedded import embedded
from .networked import networked

__all__ = ["Case", "all_cases"]


def all_cases() -> list[Case]:
    return [*embedded(), *networked()]
