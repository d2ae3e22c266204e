"""The alert rules, made from the table of metrics; written as Prometheus rules.

Every alert names a metric of the table, so a renamed metric fails a test and not an alert in
production. ``page`` is for what cannot wait until morning.
"""

from __future__ import annotations

import json
from typing import Final, Literal

import msgspec

from ._metric import Metric
from ._metric_table import METRICS

__all__ = ["ALERTS", "RULES_FILE", "Alert", "metrics_of", "rules"]

RULES_FILE: Final = "twicesafe.rules.yml"


class Alert(msgspec.Struct, frozen=True):
    name: str
    expression: str
    """In PromQL; ``{metric_name}`` stands for the full name of a row of the table."""
    lasting: str
    """How long it must be true."""
    severity: Literal["page", "ticket"]
    summary: str
    next_step: str


ALERTS: Final = (
    Alert(
        "TwicesafeStoreFailing",
        "sum(rate({store_failures_total}[5m])) > 0",
        "2m",
        "page",
        "The store does not answer: deliveries are refused, or run unprotected.",
        "Check the store and the network. `twicesafe doctor --store URL` says more once it answers.",
    ),
    Alert(
        "TwicesafeUnprotectedRuns",
        "sum(increase({unprotected_runs_total}[15m])) > 0",
        "0m",
        "page",
        "Handlers run without a claim: duplicates are not recognised.",
        "End the outage of the store, then compare your own records of this time.",
    ),
    Alert(
        "TwicesafeFallbackInUse",
        "sum(increase({fallback_claims_total}[15m])) > 0",
        "0m",
        "page",
        "Claims go to the fallback store: duplicates that only the store knows are not recognised.",
        "End the outage of the store, then compare your own records of this time.",
    ),
    Alert(
        "TwicesafeLeaseLost",
        "sum(increase({lease_losses_total}[15m])) > 0",
        "0m",
        "page",
        "Handlers ended after losing their claim: an effect may have happened twice.",
        "Use a longer lease, or check the fence in the resource; see the log for the keys.",
    ),
    Alert(
        "TwicesafeKeysHeld",
        'max({records}{{state="held"}}) > 0',
        "10m",
        "ticket",
        "Keys are held: their outcome is unknown, and their duplicates are refused.",
        "Run `twicesafe keys list --state held`, find out what was done, then resolve or release each.",
    ),
    Alert(
        "TwicesafeKeysParked",
        'max({records}{{state="parked"}}) > 0',
        "10m",
        "ticket",
        "Keys are parked: they have used up their attempts.",
        "Run `twicesafe keys list --state parked`, fix the cause, then release each.",
    ),
    Alert(
        "TwicesafeWindowTooShort",
        'sum(increase({reruns_total}{{cause="retention_expired"}}[1h])) > 0',
        "0m",
        "page",
        "Duplicates come after the window: their handlers run again.",
        "Use a longer retention than the senders retry.",
    ),
    Alert(
        "TwicesafeDuplicatesNearWindow",
        "sum(increase({duplicate_age_window_ratio}_count[6h]))"
        ' - sum(increase({duplicate_age_window_ratio}_bucket{{le="0.9"}}[6h])) > 0',
        "0m",
        "ticket",
        "Duplicates come when more than nine tenths of the window are over.",
        "Use a longer retention before one comes too late.",
    ),
    Alert(
        "TwicesafeManyDuplicates",
        'sum(rate({deliveries_total}{{outcome=~"replayed|in_progress"}}[15m]))'
        " / sum(rate({deliveries_total}[15m])) > 0.5",
        "15m",
        "ticket",
        "More than half of the deliveries are duplicates.",
        "Find the sender that retries too early or too often.",
    ),
    Alert(
        "TwicesafeMismatches",
        'sum(increase({deliveries_total}{{outcome="mismatch"}}[1h])) > 10',
        "0m",
        "ticket",
        "Senders use one key for different requests.",
        "Tell the senders: each request needs its own key.",
    ),
    Alert(
        "TwicesafeManyConflicts",
        "sum(rate({conflicts_total}[15m])) / sum(rate({deliveries_total}[15m])) > 0.2",
        "15m",
        "ticket",
        "One delivery in five finds its key in progress.",
        "Compare the handler's time with the senders' time-out: they retry while the first still runs.",
    ),
    Alert(
        "TwicesafeTakeovers",
        "sum(increase({takeovers_total}[15m])) > 5",
        "0m",
        "ticket",
        "Workers die or hang: their work is taken over.",
        "Look for restarts, out-of-memory kills and handlers that block; then at the lease.",
    ),
    Alert(
        "TwicesafeStoreSlow",
        "histogram_quantile(0.99, sum by (le, operation) (rate({store_seconds}_bucket[10m]))) > 0.5",
        "10m",
        "ticket",
        "One request in a hundred takes the store more than half a second.",
        "Look at the store's load and at the network between.",
    ),
    Alert(
        "TwicesafeDeadLetters",
        "sum(increase({dead_letters_total}[1h])) > 0",
        "0m",
        "ticket",
        "A consumer gave up on messages: they are dead letters.",
        "Run `twicesafe dead-letters list --from URL`, fix the cause, then replay or discard each.",
    ),
    Alert(
        "TwicesafeSweepBehind",
        "max({oldest_expired_seconds}) > 7200",
        "30m",
        "ticket",
        "Expired records are not swept: the store grows.",
        "Run `twicesafe sweep` regularly, or `receiver.maintain()` in one long-lived process.",
    ),
    Alert(
        "TwicesafeRelayBehind",
        "max({outbox_lag_seconds}) > 60",
        "5m",
        "page",
        "The outbox is not published: its oldest message waits for more than a minute.",
        "`twicesafe outbox status`: is a relay alive, and does the broker answer?",
    ),
    Alert(
        "TwicesafeLanesParked",
        "max({outbox_parked_lanes}) > 0",
        "5m",
        "ticket",
        "Lanes of the outbox are parked: a message used up its attempts.",
        "Run `twicesafe outbox parked`, fix the cause, then retry or skip.",
    ),
)


def rules() -> str:
    """The rules file. Strings are written as JSON, which is YAML too."""
    names = {row.name: row.full_name for row in METRICS}
    lines = [
        "# Made by docs/generate.py from twicesafe.observers._alerts: `twicesafe alerts` prints it.",
        "groups:",
        "  - name: twicesafe",
        "    rules:",
    ]
    for alert in ALERTS:
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {json.dumps(alert.expression.format(**names))}",
            f"        for: {alert.lasting}",
            "        labels:",
            f"          severity: {alert.severity}",
            "        annotations:",
            f"          summary: {json.dumps(alert.summary)}",
            f"          next_step: {json.dumps(alert.next_step)}",
        ]
    return "\n".join(lines) + "\n"


def metrics_of(alert: Alert) -> list[Metric]:
    """The rows that an alert looks at."""
    return [row for row in METRICS if f"{{{row.name}}}" in alert.expression]
