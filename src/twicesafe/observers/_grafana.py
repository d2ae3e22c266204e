"""The Grafana dashboard: a panel for each metric of the table, a row for each group, as JSON.

Counters are shown as rates by their first label, histograms as percentiles, gauges as they are. The
age of duplicates is a heat map, with the window's end at 1 in the panel beside it.
"""

from __future__ import annotations

import itertools
import json
from typing import Any, Final

from ._metric import Metric
from ._metric_table import METRICS

__all__ = ["DASHBOARD_FILE", "dashboard"]

DASHBOARD_FILE: Final = "twicesafe.dashboard.json"
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_UNITS: Final = {"": "short", "seconds": "s", "bytes": "bytes", "ratio": "percentunit"}
_WIDTH, _HEIGHT, _ROW = 8, 7, 24


def dashboard() -> str:
    """The dashboard, to import into Grafana."""
    document = {
        "title": "twicesafe",
        "uid": "twicesafe",
        "tags": ["twicesafe"],
        "timezone": "",
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [_variable()]},
        "panels": _panels(),
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _variable() -> dict[str, Any]:
    return {
        "name": "datasource",
        "type": "datasource",
        "query": "prometheus",
        "label": "Prometheus",
    }


def _panels() -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = []
    ids, y = itertools.count(1), 0
    for group, rows in itertools.groupby(METRICS, key=lambda row: row.group):
        panels.append(
            {
                "id": next(ids),
                "type": "row",
                "title": group,
                "gridPos": {"h": 1, "w": _ROW, "x": 0, "y": y},
            }
        )
        y += 1
        listed = list(rows)
        for number, row in enumerate(listed):
            x = number * _WIDTH % _ROW
            place = {"h": _HEIGHT, "w": _WIDTH, "x": x, "y": y + number * _WIDTH // _ROW * _HEIGHT}
            panels.append({"id": next(ids), "gridPos": place, **_panel(row)})
        y += -(-len(listed) * _WIDTH // _ROW) * _HEIGHT
    return panels


def _panel(row: Metric) -> dict[str, Any]:
    heat = row.name == "duplicate_age_seconds"
    unit = _UNITS[row.unit] if row.kind != "counter" else "ops"
    return {
        "type": "heatmap" if heat else "timeseries",
        "title": row.name.replace("_", " ").removesuffix(" total").capitalize(),
        "description": row.meaning.replace("`", ""),
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [_target(number, row, *each) for number, each in enumerate(_queries(row, heat))],
    }


def _queries(row: Metric, heat: bool) -> list[tuple[str, str]]:
    """Pairs of a query and its legend."""
    name, label = row.full_name, next(iter(row.labels), "")
    by, shown = (f" by ({label})", f"{{{{{label}}}}}") if label else ("", row.name)
    match row.kind:
        case "counter":
            return [(f"sum{by} (rate({name}[$__rate_interval]))", shown)]
        case "gauge":
            return [(f"max{by} ({name})", shown)]
    rates = f"(rate({name}_bucket[$__rate_interval]))"
    if heat:
        return [(f"sum by (le) {rates}", "{{le}}")]
    grouped = f"by (le, {label})" if label else "by (le)"
    return [
        (f"histogram_quantile({share}, sum {grouped} {rates})", f"p{share * 100:g} {shown}".strip())
        for share in (0.5, 0.99)
    ]


def _target(number: int, row: Metric, query: str, legend: str) -> dict[str, Any]:
    target: dict[str, Any] = {
        "refId": chr(ord("A") + number),
        "datasource": _SOURCE,
        "expr": query,
        "legendFormat": legend,
    }
    if row.name == "duplicate_age_seconds":
        target["format"] = "heatmap"
    return target
