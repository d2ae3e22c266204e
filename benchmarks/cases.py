"""What is measured call by call: all cases, in the order of the report."""

from __future__ import annotations

from .case import Case
from .durable import durable
from .embedded import embedded
from .encrypting import encrypting
from .http_layer import http_layer
from .inbox import inbox_cases
from .networked import networked
from .observing import observing
from .web import WebCase, web

__all__ = ["Case", "WebCase", "all_cases", "calls"]


def calls() -> list[Case]:
    """What can be run on another version of the library too."""
    return [*embedded(), *networked(), *http_layer(), *inbox_cases()]


def all_cases() -> list[Case | WebCase]:
    return [
        *embedded(),
        *networked(),
        *observing(),
        *encrypting(),
        *http_layer(),
        *web(),
        *inbox_cases(),
        *durable(),
    ]
