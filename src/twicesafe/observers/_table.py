"""The table of metrics: what each is called, what it means, and which events it comes from.

The Prometheus and the OpenTelemetry observer, the reference page, the alert rules and the Grafana
dashboard are made from it. To add a metric, add a row; to add a group (consumers, steps), add its
rows under a new group name.

A row's sources say, for each event, the values of its labels and the number. No label grows with
keys, tenants or messages. The one label that may, ``scope``, is added only if an observer is asked
for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, Final, Literal, TypeAlias

import msgspec

from .. import events as ev
from .._values.records import Cause, State

__all__ = [
    "METRICS",
    "OF_RECEIVERS",
    "OUTCOMES",
    "PROXY",
    "REFUSALS",
    "Kind",
    "Metric",
    "Source",
    "compiled",
    "metric",
    "together",
]

Kind: TypeAlias = Literal["counter", "histogram", "gauge"]
Numbers: TypeAlias = Iterable[tuple[tuple[str, ...], float]]
"""What one event adds to a metric: values of its labels, and a number for each."""
Columns: TypeAlias = Iterable[tuple[tuple[str, ...], Sequence[float]]]
"""What many events add to a metric: values of its labels, and numbers for each."""

REFUSALS: Final = {
    "FingerprintMismatchError": "mismatch",
    "StillInProgressError": "in_progress",
    "TooManyWaitersError": "in_progress",
    "HeldError": "held",
    "ParkedError": "parked",
    "ResultUnavailableError": "not_kept",
}
"""Outcomes by the error that a refused delivery got."""

OUTCOMES: Final = {
    "first": "the handler ran for the first time",
    "rerun": "the handler ran again; `reruns_total` says why",
    "replayed": "a duplicate got the recorded answer",
    "in_progress": "refused: another delivery of the key was in progress, or backing off",
    "mismatch": "refused: the key was first used for a different request",
    "held": "refused: the outcome of the key is unknown",
    "parked": "refused: the key has used up its attempts",
    "not_kept": "refused: the work is done, but its result was not kept",
    "unprotected": "the store was down and the handler ran without a claim",
}

PROXY: Final = "Proxy"

_FAST: Final = (*(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),)
"""Seconds of a store request."""
_SLOW: Final = (*(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),)
"""Seconds of handlers, waits and HTTP responses."""
_AGES: Final = (
    *(1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 21600.0, 43200.0),
    *(86400.0, 172800.0, 259200.0, 604800.0, 1209600.0, 2592000.0),
)
"""Seconds from the answer to its duplicate: up to thirty days."""
_SHARES: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 1.0)


class Source(msgspec.Struct, frozen=True):
    """How one kind of event changes a metric."""

    event: type[ev.Event]
    columns: Callable[[Sequence[Any]], Columns]
    """Takes many events of this kind at once, which costs less than one by one."""
    keyed: bool = False
    """The event has a key, so an observer may add the label ``scope``."""

    def numbers(self, event: ev.Event) -> Numbers:
        return [(labels, one) for labels, some in self.columns((event,)) for one in some]


class Metric(msgspec.Struct, frozen=True):
    group: str
    name: str
    """Without the prefix ``twicesafe_``; a counter ends with ``_total``."""
    kind: Kind
    meaning: str
    labels: dict[str, tuple[str, ...]]
    """At most one label, and the values that it has; none: they are not known in advance."""
    sources: tuple[Source, ...]
    unit: Literal["", "seconds", "bytes", "ratio"] = ""
    buckets: tuple[float, ...] = ()

    @property
    def full_name(self) -> str:
        return f"twicesafe_{self.name}"

    @property
    def is_keyed(self) -> bool:
        return bool(self.sources) and all(source.keyed for source in self.sources)

    def known_values(self) -> list[tuple[str, ...]]:
        """The label values that are exported from the start: an increase from nothing to 1 is seen
        only if there was a 0 before."""
        if not self.labels:
            return [()]
        (values,) = self.labels.values()
        return [(value,) for value in values]


# --- how events become numbers ---------------------------------------------------------------


def _each(event: type[ev.Event], numbers: Callable[[Any], Numbers], keyed: bool = False) -> Source:
    """Takes the events one by one: for those that are rare."""
    return Source(
        event,
        lambda events: [(labels, (one,)) for seen in events for labels, one in numbers(seen)],
        keyed,
    )


def _one(event: type[ev.Event], *labels: str) -> Source:
    """Counts the event; the values of the labels are fixed."""
    return Source(event, lambda events: ((labels, (float(len(events)),)),), _has_key(event))


def _by(event: type[ev.Event], labels: Callable[[Any], tuple[str, ...]]) -> Source:
    """Counts the event by what it says."""
    return _each(event, lambda seen: ((labels(seen), 1.0),), _has_key(event))


def _of(event: type[ev.Event], attribute: str, *labels: str) -> Source:
    """Adds, observes or sets a number of the event."""
    number = attrgetter(attribute)
    return Source(event, lambda events: ((labels, [*map(number, events)]),), _has_key(event))


def _asked(event: type[ev.Event], operation: str) -> Source:
    """Observes the store's seconds, if the event has them."""
    labels = (operation,)
    return Source(
        event,
        lambda events: ((labels, [seen.store for seen in events if seen.store is not None]),),
        keyed=True,
    )


def _has_key(event: type[ev.Event]) -> bool:
    return event.__annotations__.get("key") == "Key"


def _started(events: Sequence[ev.Started]) -> Columns:
    first = [event.cause for event in events].count(None)
    return (("first",), [1.0] * first), (("rerun",), [1.0] * (len(events) - first))


def _causes(events: Sequence[ev.Started]) -> Columns:
    return [((event.cause.value,), (1.0,)) for event in events if event.cause is not None]


def _refused(event: ev.Refused) -> tuple[str, ...]:
    return (REFUSALS.get(event.reason, "refused"),)


def _conflict(event: ev.Refused) -> Numbers:
    return ((("refused",), 1.0),) if REFUSALS.get(event.reason) == "in_progress" else ()


def _ages(events: Sequence[ev.Replayed]) -> Columns:
    return (((), [event.age for event in events if event.age is not None]),)


def _shares(events: Sequence[ev.Replayed]) -> Columns:
    known = (event for event in events if event.age is not None and event.window)
    return (((), [event.age / event.window for event in known]),)  # type: ignore[operator]


def _states(event: ev.StoreSampled) -> Numbers:
    return [((state.value,), float(event.by_state.get(state, 0))) for state in State]


def _size(event: ev.StoreSampled) -> Numbers:
    return () if event.size is None else (((), float(event.size)),)


_STATES: Final = tuple(state.value for state in State)
_CAUSES: Final = tuple(cause.value for cause in Cause)
_OPERATIONS: Final = ("claim", "complete", "fail", "outbox_hold", "outbox_fetch", "outbox_settle")


# --- the table -------------------------------------------------------------------------------

METRICS: Final[tuple[Metric, ...]] = (
    Metric(
        "Deliveries",
        "deliveries_total",
        "counter",
        "Deliveries, by what became of them. A delivery that waited is counted when its wait ends.",
        {"outcome": tuple(OUTCOMES)},
        (
            Source(ev.Started, _started, keyed=True),
            _one(ev.Replayed, "replayed"),
            _by(ev.Refused, _refused),
            _one(ev.Unprotected, "unprotected"),
        ),
    ),
    Metric(
        "Deliveries",
        "reruns_total",
        "counter",
        "Handlers that started again, by cause. `retention_expired`: a duplicate came after the window.",
        {"cause": _CAUSES},
        (Source(ev.Started, _causes, keyed=True),),
    ),
    Metric(
        "Deliveries",
        "failures_total",
        "counter",
        "Handlers that raised. `remembered`: the failure was recorded as the answer.",
        {"remembered": ("true", "false")},
        (_by(ev.Failed, lambda event: ("true" if event.remembered else "false",)),),
    ),
    Metric(
        "Deliveries",
        "duplicate_age_seconds",
        "histogram",
        "Seconds from the recorded answer to a duplicate that got it.",
        {},
        (Source(ev.Replayed, _ages, keyed=True),),
        "seconds",
        _AGES,
    ),
    Metric(
        "Deliveries",
        "duplicate_age_window_ratio",
        "histogram",
        "The same age as a share of the window (the policy's retention): near 1, the window is too short.",
        {},
        (Source(ev.Replayed, _shares, keyed=True),),
        "ratio",
        _SHARES,
    ),
    Metric(
        "Deliveries",
        "near_duplicate_ratio",
        "histogram",
        "How similar a request was to an earlier one under another key, if `twicesafe.similar` found one.",
        {},
        (_of(ev.NearDuplicate, "score"),),
        "ratio",
        _SHARES,
    ),
    Metric(
        "Time",
        "handler_seconds",
        "histogram",
        "Seconds from the granted claim to the end of the handler, whether it returned or raised.",
        {},
        (_of(ev.Completed, "handler"), _of(ev.Failed, "handler")),
        "seconds",
        _SLOW,
    ),
    Metric(
        "Time",
        "wait_seconds",
        "histogram",
        "Seconds that a delivery waited for another one of its key, or for a back-off to end.",
        {},
        (_of(ev.Waited, "seconds"),),
        "seconds",
        _SLOW,
    ),
    Metric(
        "Time",
        "store_seconds",
        "histogram",
        "Seconds until the store answered a delivery's request: its claim, or the record of its answer.",
        {"operation": ("claim", "complete")},
        (
            _asked(ev.Started, "claim"),
            _asked(ev.Replayed, "claim"),
            _asked(ev.Completed, "complete"),
        ),
        "seconds",
        _FAST,
    ),
    Metric(
        "Trouble",
        "conflicts_total",
        "counter",
        "Deliveries that found their key in progress: they waited, or were refused.",
        {"answer": ("waited", "refused")},
        (_one(ev.Waited, "waited"), _each(ev.Refused, _conflict, keyed=True)),
    ),
    Metric(
        "Trouble",
        "takeovers_total",
        "counter",
        "Handlers that started because another worker's lease ran out.",
        {},
        (_one(ev.TakenOver),),
    ),
    Metric(
        "Trouble",
        "fence_refusals_total",
        "counter",
        "Writes of a worker that the store refused because another one had taken over.",
        {"operation": ("record", "renew")},
        (_one(ev.LeaseLost, "record"), _one(ev.RenewalRefused, "renew")),
    ),
    Metric(
        "Trouble",
        "lease_losses_total",
        "counter",
        "Handlers that ended after losing their claim: the effect may have happened twice.",
        {},
        (_one(ev.LeaseLost),),
    ),
    Metric(
        "Trouble",
        "renewal_failures_total",
        "counter",
        "Lease renewals that failed and are retried.",
        {},
        (_one(ev.RenewalFailed),),
    ),
    Metric(
        "Trouble",
        "held_total",
        "counter",
        "Keys that became held: an operator must resolve or release them.",
        {},
        (_one(ev.Held),),
    ),
    Metric(
        "Trouble",
        "parked_total",
        "counter",
        "Keys that became parked: their attempts are used up.",
        {},
        (_one(ev.Parked),),
    ),
    Metric(
        "Trouble",
        "unprotected_runs_total",
        "counter",
        "Handlers that ran without a claim while the store was down.",
        {},
        (_one(ev.Unprotected),),
    ),
    Metric(
        "Trouble",
        "results_not_kept_total",
        "counter",
        "Results that were too large, not storable, or refused by the store.",
        {"reason": ()},
        (_by(ev.ResultNotKept, lambda event: (event.reason,)),),
    ),
    Metric(
        "Trouble",
        "results_unreadable_total",
        "counter",
        "Recorded answers that could not be decrypted: changed, or their key is not in the key ring.",
        {"reason": ("CorruptRecordError", "ResultUnavailableError")},
        (_by(ev.ResultUnreadable, lambda event: (event.error,)),),
    ),
    Metric(
        "Trouble",
        "store_failures_total",
        "counter",
        "Deliveries and rounds that gave up because the store did not answer or returned an error.",
        {"operation": _OPERATIONS},
        (_each(ev.StoreFailed, lambda event: (((event.operation,), 1.0),)),),
    ),
    Metric(
        "Trouble",
        "breaker_changes_total",
        "counter",
        "Times that a circuit breaker opened or closed.",
        {"state": ("open", "closed")},
        (_by(ev.BreakerChanged, lambda event: (event.state,)),),
    ),
    Metric(
        "Trouble",
        "breaker_open",
        "gauge",
        "1 while the circuit breaker keeps claims from the store; absent until it first opens.",
        {},
        (_each(ev.BreakerChanged, lambda event: (((), float(event.state == "open")),)),),
    ),
    Metric(
        "Trouble",
        "fallback_claims_total",
        "counter",
        "Claims that the fallback store granted: duplicates that only the store knows were not seen.",
        {},
        (_one(ev.FellBack),),
    ),
    Metric(
        "Durable runs",
        "steps_total",
        "counter",
        "Steps, by where their result came from: `recorded` ran, `replayed` answered a resumed run.",
        {"outcome": ("recorded", "replayed")},
        (_one(ev.StepRecorded, "recorded"), _one(ev.StepReplayed, "replayed")),
    ),
    Metric(
        "Durable runs",
        "step_seconds",
        "histogram",
        "Seconds of the last try of a step, with its recording.",
        {},
        (_of(ev.StepRecorded, "seconds"),),
        "seconds",
        _SLOW,
    ),
    Metric(
        "Durable runs",
        "suspensions_total",
        "counter",
        "Times that a run began to sleep or to wait. `records` counts the runs that are suspended now.",
        {},
        (_one(ev.RunSuspended),),
    ),
    Metric(
        "Durable runs",
        "compensations_total",
        "counter",
        "Runs that failed for good and were undone.",
        {},
        (_one(ev.Compensated),),
    ),
    Metric(
        "Store",
        "records",
        "gauge",
        "Records in the store, by state.",
        {"state": _STATES},
        (_each(ev.StoreSampled, _states),),
    ),
    Metric(
        "Store",
        "records_stuck",
        "gauge",
        "Records in progress past their lease: the next delivery of each takes it over.",
        {},
        (_of(ev.StoreSampled, "stuck"),),
    ),
    Metric(
        "Store",
        "records_expired",
        "gauge",
        "Records past their retention that no sweep has removed yet.",
        {},
        (_of(ev.StoreSampled, "expired"),),
    ),
    Metric(
        "Store",
        "oldest_expired_seconds",
        "gauge",
        "Seconds since the retention of the oldest of them ended; 0: there is none.",
        {},
        (_of(ev.StoreSampled, "oldest_expired"),),
        "seconds",
    ),
    Metric(
        "Store",
        "store_bytes",
        "gauge",
        "Bytes that the store uses for its records; absent where the store cannot say.",
        {},
        (_each(ev.StoreSampled, _size),),
        "bytes",
    ),
    Metric(
        "Store",
        "sweeps_total",
        "counter",
        "Sweeps that ended.",
        {},
        (_one(ev.Swept),),
    ),
    Metric(
        "Store",
        "swept_records_total",
        "counter",
        "Records that sweeps have removed.",
        {},
        (_of(ev.Swept, "removed"),),
    ),
    Metric(
        "Consumers",
        "dead_letters_total",
        "counter",
        "Messages that a consumer gave up on: they go to the dead letters.",
        {},
        (_one(ev.DeadLettered),),
    ),
    Metric(
        "Outbox",
        "relayed_messages_total",
        "counter",
        "Outbox messages that were published and removed.",
        {},
        (_of(ev.Relayed, "count"),),
    ),
    Metric(
        "Outbox",
        "publish_failures_total",
        "counter",
        "Messages that a broker or handler refused; their lanes back off.",
        {},
        (_one(ev.PublishFailed),),
    ),
    Metric(
        "Outbox",
        "lanes_parked_total",
        "counter",
        "Lanes that were parked: a message used up its attempts.",
        {},
        (_one(ev.LaneParked),),
    ),
    Metric(
        "Outbox",
        "broker_failures_total",
        "counter",
        "Times that the broker accepted nothing; the relay retries.",
        {},
        (_one(ev.BrokerFailed),),
    ),
    Metric(
        "Outbox",
        "outbox_pending_messages",
        "gauge",
        "Outbox messages that wait to be published.",
        {},
        (_of(ev.OutboxSampled, "pending"),),
    ),
    Metric(
        "Outbox",
        "outbox_lag_seconds",
        "gauge",
        "Seconds since the oldest pending message was added: how far the relays are behind.",
        {},
        (_of(ev.OutboxSampled, "oldest_age"),),
        "seconds",
    ),
    Metric(
        "Outbox",
        "outbox_parked_messages",
        "gauge",
        "Messages in parked lanes.",
        {},
        (_of(ev.OutboxSampled, "parked"),),
    ),
    Metric(
        "Outbox",
        "outbox_parked_lanes",
        "gauge",
        "Parked lanes: an operator must retry or skip.",
        {},
        (_of(ev.OutboxSampled, "parked_lanes"),),
    ),
    Metric(
        "Outbox",
        "outbox_resting_lanes",
        "gauge",
        "Lanes that back off after a refused message.",
        {},
        (_of(ev.OutboxSampled, "resting_lanes"),),
    ),
    Metric(
        "Outbox",
        "outbox_relays",
        "gauge",
        "Relays that are alive.",
        {},
        (_of(ev.OutboxSampled, "relays"),),
    ),
    Metric(
        PROXY,
        "proxy_responses_total",
        "counter",
        "Responses of the proxy, by status; 0: no response was started.",
        {"status": ()},
        (_each(ev.Responded, lambda event: (((str(event.status),), 1.0),)),),
    ),
    Metric(
        PROXY,
        "proxy_response_seconds",
        "histogram",
        "Seconds from a request's head to the end of its response.",
        {},
        (_each(ev.Responded, lambda event: (((), event.seconds),)),),
        "seconds",
        _SLOW,
    ),
    Metric(
        PROXY,
        "proxy_upstream_failures_total",
        "counter",
        "Requests without a complete answer from the upstream.",
        {"reason": ("Unreachable", "UpstreamLost", "UpstreamTimedOut")},
        (_each(ev.UpstreamFailed, lambda event: (((event.reason,), 1.0),)),),
    ),
    Metric(
        PROXY,
        "proxy_in_flight",
        "gauge",
        "Requests that the proxy serves now.",
        {},
        (),
    ),
    Metric(
        PROXY,
        "proxy_workers",
        "gauge",
        "Worker processes of the proxy that answer.",
        {},
        (),
    ),
)

OF_RECEIVERS: Final = tuple(row for row in METRICS if row.group != PROXY)
"""What an application has; the rest is counted by the proxy alone."""


def metric(name: str) -> Metric:
    """The row of this name."""
    return next(row for row in METRICS if row.name == name)


def compiled(
    update: Callable[[Metric, Source], Callable[[Any], object]], rows: Iterable[Metric] = METRICS
) -> dict[type[ev.Event], tuple[Callable[[Any], object], ...]]:
    """For each event, what to call: one update for each of these metrics that comes from it."""
    found: dict[type[ev.Event], list[Callable[[Any], object]]] = {}
    for row in rows:
        for source in row.sources:
            found.setdefault(source.event, []).append(update(row, source))
    return {event: tuple(updates) for event, updates in found.items()}


def together(updates: tuple[Callable[[Any], object], ...]) -> Callable[[Any], object]:
    """One call for all of them."""
    if len(updates) == 1:
        return updates[0]

    def update_all(event: Any) -> None:
        for update in updates:
            update(event)

    return update_all
