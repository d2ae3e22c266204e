"""Strategies: other ways to make a repeat harmless, on your own connection.

    tables            unique-constraint insert, version check, absolute set
    high_water_marks  the highest number processed per producer, for sources that deliver in order
    event_log         append once, under a deterministic id, at an expected version
    projections       read models that follow a log and can be replayed from any point
    statements        the SQL that they share

Each works in the open transaction of the connection that you pass, and stores less than an inbox does.
docs/explanation/which-strategy.md says when to choose which.
"""

from __future__ import annotations

from ._event_log import Appended, AsyncEventLog, Event, EventLog
from ._high_water_marks import AsyncHighWaterMarks, HighWaterMarks
from ._projections import AsyncProjection, Projection
from ._tables import AsyncTable, Table

__all__ = [
    "Appended",
    "AsyncEventLog",
    "AsyncHighWaterMarks",
    "AsyncProjection",
    "AsyncTable",
    "Event",
    "EventLog",
    "HighWaterMarks",
    "Projection",
    "Table",
]
