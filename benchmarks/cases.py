"""What is measured call by call: all cases, in the order of the report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .case import Case
from .embedded import embedded
from .http_layer import http_layer
from .inbox import inbox_cases
from .networked import networked

if TYPE_CHECKING:
    from .web import WebCase

__all__ = ["Case", "all_cases", "calls"]


def calls() -> list[Case]:
    """What can be run on another version of the library too."""
    return [*embedded(), *networked(), *http_layer(), *inbox_cases()]


def all_cases() -> list[Case | WebCase]:
    # Here, because older versions of the library lack what these measure.
    from .durable import durable
    from .encrypting import encrypting
    from .observing import observing
    from .web import web

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
