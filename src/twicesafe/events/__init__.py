"""Events that observers receive as they happen.

An observer is a callable that takes one event. It runs in the caller's thread, so it must be quick.
Its errors are logged and swallowed. Events contain the key object, never results. `twicesafe.observers`
has observers for Prometheus, OpenTelemetry and logging, made from one table of metrics.

An observer that is also a `Tracer` gets to wrap the handler, and to name the trace that a record keeps.

    _kinds      every kind of event
    _notifying  how events reach observers
"""

from __future__ import annotations

from ._kinds import (
    BreakerChanged,
    BrokerFailed,
    Compensated,
    Completed,
    DeadLettered,
    Event,
    Failed,
    FellBack,
    Held,
    LaneParked,
    LeaseLost,
    NearDuplicate,
    OutboxSampled,
    Parked,
    PublishFailed,
    Refused,
    Relayed,
    RenewalFailed,
    RenewalRefused,
    Replayed,
    Responded,
    ResultNotKept,
    ResultUnreadable,
    RunSuspended,
    Started,
    StepRecorded,
    StepReplayed,
    StoreFailed,
    StoreSampled,
    Swept,
    TakenOver,
    Unprotected,
    UpstreamFailed,
    Waited,
)
from ._notifying import Observer, Tracer, notifier, tracer_of

__all__ = [
    "BreakerChanged",
    "BrokerFailed",
    "Compensated",
    "Completed",
    "DeadLettered",
    "Event",
    "Failed",
    "FellBack",
    "Held",
    "LaneParked",
    "LeaseLost",
    "NearDuplicate",
    "Observer",
    "OutboxSampled",
    "Parked",
    "PublishFailed",
    "Refused",
    "Relayed",
    "RenewalFailed",
    "RenewalRefused",
    "Replayed",
    "Responded",
    "ResultNotKept",
    "ResultUnreadable",
    "RunSuspended",
    "Started",
    "StepRecorded",
    "StepReplayed",
    "StoreFailed",
    "StoreSampled",
    "Swept",
    "TakenOver",
    "Tracer",
    "Unprotected",
    "UpstreamFailed",
    "Waited",
    "notifier",
    "tracer_of",
]
