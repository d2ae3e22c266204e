"""Observers: what receivers, inboxes and relays do, as metrics, traces and log lines.

    from twicesafe.observers import LogObserver, OpenTelemetryObserver, PrometheusObserver

    receiver = Receiver.open(url, observers=[PrometheusObserver(), OpenTelemetryObserver()])

Pass the same observers to an `Inbox` or an `OutboxRelay`. One table (`_metric_table`) lists the
metrics; the reference page, the alert rules (``twicesafe alerts``) and the Grafana dashboard
(``twicesafe grafana``) are made from it. A receiver without observers has no overhead.

`PrometheusObserver` needs ``twicesafe[prometheus]``, `OpenTelemetryObserver` ``twicesafe[opentelemetry]``.

    _prometheus, _opentelemetry, _log    the observers
    _metric_table       the table; `_metric`: what its rows are made of
    _alerts, _grafana   files made from the table
    _tally              counts events; `_history`: what the counts were some minutes ago
    _activity           what a receiver did lately, for `receiver.health()` and the dashboard
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._log import LogObserver

if TYPE_CHECKING:
    from ._opentelemetry import OpenTelemetryObserver
    from ._prometheus import PrometheusObserver

__all__ = ["LogObserver", "OpenTelemetryObserver", "PrometheusObserver"]


if not TYPE_CHECKING:  # a type checker must not believe that every name exists

    def __getattr__(name: str) -> Any:
        """Loaded on first use: each needs its own driver."""
        if name == "PrometheusObserver":
            from ._prometheus import PrometheusObserver

            return PrometheusObserver
        if name == "OpenTelemetryObserver":
            from ._opentelemetry import OpenTelemetryObserver

            return OpenTelemetryObserver
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
