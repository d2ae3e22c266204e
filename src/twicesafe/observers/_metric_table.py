"""The table of metrics: what each is called, what it means, and which events it comes from.

The Prometheus and the OpenTelemetry observer, the reference page, the alert rules and the Grafana
dashboard are made from it. To add a metric, add a row, or a group with its rows. `_metric` has the words
that rows are written with.

No label grows with keys, tenants or messages. The one label that may, ``scope``, is added only if an
observer is asked for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .. import events as ev
from .._values.records import Cause, State
from ._metric import (
    AGES,
    FAST,
    SHARES,
    SLOW,
    Columns,
    EventSource,
    Metric,
    Numbers,
    counted,
    counted_by,
    counter,
    each,
    gauge,
    grouped,
    histogram,
    number_of,
    store_seconds,
)

__all__ = ["METRICS", "OF_RECEIVERS", "OUTCOMES", "PROXY", "REFUSALS", "metric"]


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


# --- how events become numbers ---------------------------------------------------------------


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
    shares = [
        age / event.window for event in events if (age := event.age) is not None and event.window
    ]
    return (((), shares),)


def _states(event: ev.StoreSampled) -> Numbers:
    return [((state.value,), float(event.by_state.get(state, 0))) for state in State]


def _size(event: ev.StoreSampled) -> Numbers:
    return () if event.size is None else (((), float(event.size)),)


_STATES: Final = tuple(state.value for state in State)
_CAUSES: Final = tuple(cause.value for cause in Cause)
_OPERATIONS: Final = (
    "claim",
    "complete",
    "fail",
    "outbox_heartbeat",
    "outbox_fetch",
    "outbox_settle",
)


# --- the table -------------------------------------------------------------------------------

METRICS: Final[tuple[Metric, ...]] = (
    *grouped(
        "Deliveries",
        counter(
            "deliveries_total",
            "Deliveries, by what became of them. A delivery that waited is counted when its wait ends.",
            EventSource(ev.Started, _started, keyed=True),
            counted(ev.Replayed, "replayed"),
            counted_by(ev.Refused, _refused),
            counted(ev.Unprotected, "unprotected"),
            outcome=tuple(OUTCOMES),
        ),
        counter(
            "reruns_total",
            "Handlers that started again, by cause. `retention_expired`: a duplicate came after the window.",
            EventSource(ev.Started, _causes, keyed=True),
            cause=_CAUSES,
        ),
        counter(
            "failures_total",
            "Handlers that raised. `remembered`: the failure was recorded as the answer.",
            counted_by(ev.Failed, lambda event: ("true" if event.remembered else "false",)),
            remembered=("true", "false"),
        ),
        histogram(
            "duplicate_age_seconds",
            "Seconds from the recorded answer to a duplicate that got it.",
            EventSource(ev.Replayed, _ages, keyed=True),
            buckets=AGES,
        ),
        histogram(
            "duplicate_age_window_ratio",
            "The same age as a share of the window (the policy's retention): near 1, the window is too short.",
            EventSource(ev.Replayed, _shares, keyed=True),
            unit="ratio",
            buckets=SHARES,
        ),
        histogram(
            "near_duplicate_ratio",
            "How similar a request was to an earlier one under another key, if `twicesafe.similar` found one.",
            number_of(ev.NearDuplicate, "score"),
            unit="ratio",
            buckets=SHARES,
        ),
    ),
    *grouped(
        "Time",
        histogram(
            "handler_seconds",
            "Seconds from the granted claim to the end of the handler, whether it returned or raised.",
            number_of(ev.Completed, "handler"),
            number_of(ev.Failed, "handler"),
            buckets=SLOW,
        ),
        histogram(
            "wait_seconds",
            "Seconds that a delivery waited for another one of its key, or for a back-off to end.",
            number_of(ev.Waited, "seconds"),
            buckets=SLOW,
        ),
        histogram(
            "store_seconds",
            "Seconds until the store answered a delivery's request: its claim, or the record of its answer.",
            store_seconds(ev.Started, "claim"),
            store_seconds(ev.Replayed, "claim"),
            store_seconds(ev.Completed, "complete"),
            buckets=FAST,
            operation=("claim", "complete"),
        ),
    ),
    *grouped(
        "Trouble",
        counter(
            "conflicts_total",
            "Deliveries that found their key in progress: they waited, or were refused.",
            counted(ev.Waited, "waited"),
            each(ev.Refused, _conflict, keyed=True),
            answer=("waited", "refused"),
        ),
        counter(
            "takeovers_total",
            "Handlers that started because another worker's lease ran out.",
            counted(ev.TakenOver),
        ),
        counter(
            "fence_refusals_total",
            "Writes of a worker that the store refused because another one had taken over.",
            counted(ev.LeaseLost, "record"),
            counted(ev.RenewalRefused, "renew"),
            operation=("record", "renew"),
        ),
        counter(
            "lease_losses_total",
            "Handlers that ended after losing their claim: the effect may have happened twice.",
            counted(ev.LeaseLost),
        ),
        counter(
            "renewal_failures_total",
            "Lease renewals that failed and are retried.",
            counted(ev.RenewalFailed),
        ),
        counter(
            "held_total",
            "Keys that became held: an operator must resolve or release them.",
            counted(ev.Held),
        ),
        counter(
            "parked_total",
            "Keys that became parked: their attempts are used up.",
            counted(ev.Parked),
        ),
        counter(
            "unprotected_runs_total",
            "Handlers that ran without a claim while the store was down.",
            counted(ev.Unprotected),
        ),
        counter(
            "results_not_kept_total",
            "Results that were too large, not storable, or refused by the store.",
            counted_by(ev.ResultNotKept, lambda event: (event.reason,)),
            reason=(),
        ),
        counter(
            "results_unreadable_total",
            "Recorded answers that could not be read: changed, without their key in the key ring, or of another class or codec.",
            counted_by(ev.ResultUnreadable, lambda event: (event.error,)),
            reason=("CorruptRecordError", "ResultUnavailableError"),
        ),
        counter(
            "store_failures_total",
            "Deliveries and rounds that gave up because the store did not answer or returned an error.",
            each(ev.StoreFailed, lambda event: (((event.operation,), 1.0),)),
            operation=_OPERATIONS,
        ),
        counter(
            "breaker_changes_total",
            "Times that a circuit breaker opened or closed.",
            counted_by(ev.BreakerChanged, lambda event: (event.state,)),
            state=("open", "closed"),
        ),
        gauge(
            "breaker_open",
            "1 while the circuit breaker keeps claims from the store; absent until it first opens.",
            each(ev.BreakerChanged, lambda event: (((), float(event.state == "open")),)),
        ),
        counter(
            "fallback_claims_total",
            "Claims that the fallback store granted: duplicates that only the store knows were not seen.",
            counted(ev.FellBack),
        ),
    ),
    *grouped(
        "Durable runs",
        counter(
            "steps_total",
            "Steps, by where their result came from: `recorded` ran, `replayed` answered a resumed run.",
            counted(ev.StepRecorded, "recorded"),
            counted(ev.StepReplayed, "replayed"),
            outcome=("recorded", "replayed"),
        ),
        histogram(
            "step_seconds",
            "Seconds of the last try of a step, with its recording.",
            number_of(ev.StepRecorded, "seconds"),
            buckets=SLOW,
        ),
        counter(
            "suspensions_total",
            "Times that a run began to sleep or to wait. `records` counts the runs that are suspended now.",
            counted(ev.RunSuspended),
        ),
        counter(
            "compensations_total",
            "Runs that failed permanently and were undone.",
            counted(ev.Compensated),
        ),
    ),
    *grouped(
        "Store",
        gauge(
            "records",
            "Records in the store, by state.",
            each(ev.StoreSampled, _states),
            state=_STATES,
        ),
        gauge(
            "records_stuck",
            "Records in progress past their lease: the next delivery of each takes it over.",
            number_of(ev.StoreSampled, "stuck"),
        ),
        gauge(
            "records_expired",
            "Records past their retention that no sweep has removed yet.",
            number_of(ev.StoreSampled, "expired"),
        ),
        gauge(
            "oldest_expired_seconds",
            "Seconds since the retention of the oldest of them ended; 0: there is none.",
            number_of(ev.StoreSampled, "oldest_expired"),
            unit="seconds",
        ),
        gauge(
            "store_bytes",
            "Bytes that the store uses for its records; absent where the store cannot say.",
            each(ev.StoreSampled, _size),
            unit="bytes",
        ),
        counter("sweeps_total", "Sweeps that ended.", counted(ev.Swept)),
        counter(
            "swept_records_total",
            "Records that sweeps have removed.",
            number_of(ev.Swept, "removed"),
        ),
    ),
    *grouped(
        "Consumers",
        counter(
            "dead_letters_total",
            "Messages that a consumer gave up on: they go to the dead letters.",
            counted(ev.DeadLettered),
        ),
    ),
    *grouped(
        "Outbox",
        counter(
            "relayed_messages_total",
            "Outbox messages that were published and removed.",
            number_of(ev.Relayed, "count"),
        ),
        counter(
            "publish_failures_total",
            "Messages that a broker or handler refused; their lanes back off.",
            counted(ev.PublishFailed),
        ),
        counter(
            "lanes_parked_total",
            "Lanes that were parked: a message used up its attempts.",
            counted(ev.LaneParked),
        ),
        counter(
            "broker_failures_total",
            "Times that a broker did not answer, or accepted nothing; the relay, or the consumer, retries.",
            counted(ev.BrokerFailed),
        ),
        gauge(
            "outbox_pending_messages",
            "Outbox messages that wait to be published.",
            number_of(ev.OutboxSampled, "pending"),
        ),
        gauge(
            "outbox_lag_seconds",
            "Seconds since the oldest pending message was added: how far the relays are behind.",
            number_of(ev.OutboxSampled, "oldest_age"),
            unit="seconds",
        ),
        gauge(
            "outbox_parked_messages",
            "Messages in parked lanes.",
            number_of(ev.OutboxSampled, "parked"),
        ),
        gauge(
            "outbox_parked_lanes",
            "Parked lanes: an operator must retry or skip.",
            number_of(ev.OutboxSampled, "parked_lanes"),
        ),
        gauge(
            "outbox_resting_lanes",
            "Lanes that back off after a refused message.",
            number_of(ev.OutboxSampled, "resting_lanes"),
        ),
        gauge("outbox_relays", "Relays that are alive.", number_of(ev.OutboxSampled, "relays")),
    ),
    *grouped(
        PROXY,
        counter(
            "proxy_responses_total",
            "Responses of the proxy, by status; 0: no response was started.",
            each(ev.Responded, lambda event: (((str(event.status),), 1.0),)),
            status=(),
        ),
        histogram(
            "proxy_response_seconds",
            "Seconds from a request's head to the end of its response.",
            each(ev.Responded, lambda event: (((), event.seconds),)),
            buckets=SLOW,
        ),
        counter(
            "proxy_upstream_failures_total",
            "Requests without a complete answer from the upstream.",
            each(ev.UpstreamFailed, lambda event: (((event.reason,), 1.0),)),
            reason=("Unreachable", "UpstreamLost", "UpstreamTimedOut"),
        ),
        gauge("proxy_in_flight", "Requests that the proxy serves now."),
        gauge("proxy_workers", "Worker processes of the proxy that answer."),
    ),
)

OF_RECEIVERS: Final = tuple(row for row in METRICS if row.group != PROXY)
"""What an application has; the rest is counted by the proxy alone."""


def metric(name: str) -> Metric:
    """The row of this name."""
    return next(row for row in METRICS if row.name == name)
