"""Every kind of event: deliveries, leases, durable runs, stores, outbox, consumers, proxy."""

from __future__ import annotations

import msgspec

from .._values.keys import Key
from .._values.records import Cause, State

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
    "Unprotected",
    "UpstreamFailed",
    "Waited",
]


class Event(msgspec.Struct, frozen=True, gc=False):
    """Base of all events."""


class Started(Event, frozen=True, gc=False):
    """A handler starts. ``cause``: why it runs again; None on the first attempt."""

    key: Key
    attempt: int
    cause: Cause | None
    store: float | None = None
    """Seconds until the store granted the claim; in an inbox not known."""


class TakenOver(Event, frozen=True, gc=False):
    """A handler starts because another worker's lease ran out."""

    key: Key
    attempt: int


class Completed(Event, frozen=True, gc=False):
    """The handler returned and the store confirmed its record. ``seconds``: since the claim was sent."""

    key: Key
    seconds: float
    handler: float = 0.0
    """Seconds of the handler alone. In a batch they include the wait for a free worker."""
    store: float | None = None
    """Seconds until the store confirmed the record; in an inbox your transaction does."""


class Failed(Event, frozen=True, gc=False):
    """The handler raised. ``remembered``: the failure was recorded as the key's answer."""

    key: Key
    error: str
    attempt: int
    remembered: bool
    handler: float = 0.0
    """Seconds of the handler alone."""


class Replayed(Event, frozen=True, gc=False):
    """A duplicate got the recorded answer. ``age``: seconds since completion, if known."""

    key: Key
    age: float | None
    cached: bool = False
    window: float = 0.0
    """Seconds for which the policy keeps an answer, to compare the age with."""
    origin: bytes = b""
    """The trace of the first run, as its tracer named it; empty: none was kept."""
    store: float | None = None
    """Seconds until the store answered the claim; None: it was answered without one."""


class Waited(Event, frozen=True, gc=False):
    """A delivery has waited for another one of its key, or for a back-off to end."""

    key: Key
    seconds: float


class Refused(Event, frozen=True, gc=False):
    """A delivery was answered without running: ``reason`` is the error's class name."""

    key: Key
    reason: str


class LeaseLost(Event, frozen=True, gc=False):
    """A worker finished after losing its claim; its result was not recorded."""

    key: Key


class RenewalFailed(Event, frozen=True, gc=False):
    """A lease renewal failed; the lease keeper retries."""

    key: Key
    error: str


class RenewalRefused(Event, frozen=True, gc=False):
    """The store refused to renew a lease: another worker has the key. The handler must stop."""

    key: Key


class ResultNotKept(Event, frozen=True, gc=False):
    """The work is done, but its result was too large, not storable, or refused by the store."""

    key: Key
    reason: str


class ResultUnreadable(Event, frozen=True, gc=False):
    """A recorded answer could not be read: it was changed, its key is not in the key ring, or its
    class or codec has changed.
    """

    key: Key
    error: str


class StoreFailed(Event, frozen=True, gc=False):
    """The store did not answer, or returned an error."""

    key: Key | None
    operation: str
    error: str


class Unprotected(Event, frozen=True, gc=False):
    """The store was down and the handler ran without a claim (``outage="run"``)."""

    key: Key


class BreakerChanged(Event, frozen=True, gc=False):
    """A circuit breaker opened or closed. While it is open, claims are not sent to the store."""

    state: str
    """open or closed."""
    failures: int
    """Failed requests in a row."""
    rest: float
    """Seconds until a claim tries again."""


class FellBack(Event, frozen=True, gc=False):
    """A claim was granted by the fallback store: duplicates that only the store knows are not seen."""

    key: Key


class Held(Event, frozen=True, gc=False):
    """A key is held: its outcome is unknown. An operator must resolve or release it."""

    key: Key
    reason: str


class Parked(Event, frozen=True, gc=False):
    """A key is parked: its attempts are used up. An operator must resolve or release it."""

    key: Key
    reason: str


class StepRecorded(Event, frozen=True, gc=False):
    """A step of a durable run was done and recorded."""

    key: Key
    """Of the run."""
    step: str
    kind: str
    """run, capture, transact or undo."""
    attempt: int
    """How many tries it took."""
    seconds: float
    """Of the last try, with its recording."""


class StepReplayed(Event, frozen=True, gc=False):
    """A run was resumed, and a step answered with its recorded result."""

    key: Key
    """Of the run."""
    step: str


class RunSuspended(Event, frozen=True, gc=False):
    """A durable run sleeps, or waits for a signal. When it continues, `Started` has the cause ``resumed``."""

    key: Key
    seconds: float | None = None
    """Until it is due; None: when its signal comes."""


class Compensated(Event, frozen=True, gc=False):
    """A durable run failed permanently, and what it had done is undone."""

    key: Key
    steps: int
    """Steps that were undone."""


class NearDuplicate(Event, frozen=True, gc=False):
    """A request probably means the same as an earlier one under another key. Nothing was decided."""

    key: Key
    earlier: Key
    """The key of the earlier request."""
    score: float
    """How similar their prose is, from the threshold to 1. Their values are equal."""
    age: float
    """Seconds since the earlier request."""


class Swept(Event, frozen=True, gc=False):
    """A sweep ended."""

    removed: int
    examined: int


class StoreSampled(Event, frozen=True, gc=False):
    """The store was counted, by `sample` or in a round of maintenance."""

    by_state: dict[State, int]
    stuck: int
    """In progress past their lease."""
    expired: int
    """Past their retention, not swept yet."""
    oldest_expired: float
    """Seconds since the retention of the oldest of them ended; 0: there is none."""
    size: int | None
    """Bytes that the store uses; None: it cannot say."""


class OutboxSampled(Event, frozen=True, gc=False):
    """A relay counted its outbox."""

    pending: int
    oldest_age: float
    """Seconds since the oldest pending message was added."""
    parked: int
    parked_lanes: int
    resting_lanes: int
    relays: int


class Relayed(Event, frozen=True, gc=False):
    """``count`` outbox messages were published and their rows deleted."""

    count: int


class PublishFailed(Event, frozen=True, gc=False):
    """The broker or the handler refused a message; its lane backs off before the next attempt."""

    message_id: str
    topic: str
    attempt: int
    error: str


class LaneParked(Event, frozen=True, gc=False):
    """A message used up its attempts: its lane waits for an operator. Other lanes continue."""

    message_id: str
    topic: str
    attempt: int
    error: str


class BrokerFailed(Event, frozen=True, gc=False):
    """The broker accepted none of these messages; the relay, or the consumer, retries after ``delay``
    seconds."""

    count: int
    error: str
    delay: float


class DeadLettered(Event, frozen=True, gc=False):
    """A consumer gives up on a message: it goes to the dead letters."""

    message_id: str
    topic: str
    reason: str


class Responded(Event, frozen=True, gc=False):
    """The proxy has answered a request."""

    key: Key | None
    method: str
    route: str
    """The path, without its query."""
    status: int
    """0: no response was started."""
    seconds: float
    outcome: str = ""
    """What became of a request with a key."""


class UpstreamFailed(Event, frozen=True, gc=False):
    """The proxy got no complete answer from the upstream."""

    reason: str
