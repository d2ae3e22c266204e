"""What is measured: all cases, in the order of the report."""

from __future__ import annotations

from .case import Case
from .embedded import embedded
from .networked import networked
from .web import WebCase, web

__all__ = ["Case", "WebCase", "all_cases"]


def all_cases() -> list[Case | WebCase]:
    return [*embedded(), *networked(), *web()]
