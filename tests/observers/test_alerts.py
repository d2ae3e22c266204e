"""The alert rules and the dashboard: promtool checks them, every alert fires when it should, and a real
Prometheus reads a running example."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.house.repository import ROOT
from tests.polling import until
from tests.servers import NoServerError, free_port
from tests.servers.prometheus import Prometheus, promtool
from twicesafe.observers._alerts import ALERTS, RULES_FILE, Alert, metrics_of
from twicesafe.observers._grafana import DASHBOARD_FILE
from twicesafe.observers._metric_table import METRICS

FILES = ROOT / "src/twicesafe/observers/files"

RISING, FLAT = "0+6x60", "5+0x60"
Series = dict[str, str]

# For each alert: series of an hour, one value a minute, that fire it, and series that do not.
CASES: dict[str, tuple[Series, Series]] = {
    "TwicesafeStoreFailing": (
        {'store_failures_total{operation="claim"}': RISING},
        {'store_failures_total{operation="claim"}': FLAT},
    ),
    "TwicesafeUnprotectedRuns": (
        {"unprotected_runs_total": RISING},
        {"unprotected_runs_total": FLAT},
    ),
    "TwicesafeFallbackInUse": (
        {"fallback_claims_total": RISING},
        {"fallback_claims_total": FLAT},
    ),
    "TwicesafeLeaseLost": ({"lease_losses_total": RISING}, {"lease_losses_total": FLAT}),
    "TwicesafeKeysHeld": (
        {'records{state="held"}': "1+0x60"},
        {'records{state="held"}': "0+0x60", 'records{state="parked"}': "9+0x60"},
    ),
    "TwicesafeKeysParked": (
        {'records{state="parked"}': "1+0x60"},
        {'records{state="parked"}': "0+0x60", 'records{state="held"}': "9+0x60"},
    ),
    "TwicesafeWindowTooShort": (
        {'reruns_total{cause="retention_expired"}': RISING},
        {'reruns_total{cause="failed"}': RISING},
    ),
    "TwicesafeDuplicatesNearWindow": (
        {
            "duplicate_age_window_ratio_count": "0+2x60",
            'duplicate_age_window_ratio_bucket{le="0.9"}': "0+1x60",
        },
        {
            "duplicate_age_window_ratio_count": "0+2x60",
            'duplicate_age_window_ratio_bucket{le="0.9"}': "0+2x60",
        },
    ),
    "TwicesafeManyDuplicates": (
        {
            'deliveries_total{outcome="first"}': "0+4x60",
            'deliveries_total{outcome="replayed"}': "0+4x60",
            'deliveries_total{outcome="in_progress"}': "0+4x60",
        },
        {
            'deliveries_total{outcome="first"}': "0+9x60",
            'deliveries_total{outcome="replayed"}': "0+4x60",
        },
    ),
    "TwicesafeMismatches": (
        {'deliveries_total{outcome="mismatch"}': RISING},
        {'deliveries_total{outcome="first"}': RISING},
    ),
    "TwicesafeManyConflicts": (
        {
            'deliveries_total{outcome="first"}': "0+9x60",
            'conflicts_total{answer="waited"}': "0+3x60",
        },
        {
            'deliveries_total{outcome="first"}': "0+9x60",
            'conflicts_total{answer="waited"}': "0+1x60",
        },
    ),
    "TwicesafeTakeovers": ({"takeovers_total": RISING}, {"takeovers_total": FLAT}),
    "TwicesafeStoreSlow": (
        {
            'store_seconds_bucket{operation="claim",le="0.5"}': "0+90x60",
            'store_seconds_bucket{operation="claim",le="1.0"}': "0+100x60",
            'store_seconds_bucket{operation="claim",le="+Inf"}': "0+100x60",
        },
        {
            'store_seconds_bucket{operation="claim",le="0.1"}': "0+100x60",
            'store_seconds_bucket{operation="claim",le="+Inf"}': "0+100x60",
        },
    ),
    "TwicesafeDeadLetters": ({"dead_letters_total": RISING}, {"dead_letters_total": FLAT}),
    "TwicesafeSweepBehind": (
        {"oldest_expired_seconds": "7201+60x60"},
        {"oldest_expired_seconds": "3600+0x60"},
    ),
    "TwicesafeRelayBehind": (
        {"outbox_lag_seconds": "61+60x60"},
        {"outbox_lag_seconds": "5+0x60"},
    ),
    "TwicesafeLanesParked": (
        {"outbox_parked_lanes": "1+0x60"},
        {"outbox_parked_lanes": "0+0x60"},
    ),
}


@pytest.fixture(scope="module")
def checker() -> str:
    try:
        return promtool()
    except NoServerError as reason:
        pytest.skip(f"promtool: {reason}")


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_alert_has_a_case():
    assert set(CASES) == {alert.name for alert in ALERTS}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_says_what_to_do_and_looks_at_the_table(alert: Alert):
    assert metrics_of(alert)
    assert alert.summary.endswith(".")
    assert alert.next_step
    named = set(re.findall(r"\{([a-z_]+)\}", alert.expression))
    assert named == {row.name for row in metrics_of(alert)}


def test_the_rules_are_valid(checker: str):
    assert f"{len(ALERTS)} rules found" in run(checker, "check", "rules", str(FILES / RULES_FILE))


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_fires_when_it_should_and_only_then(checker: str, alert: Alert, tmp_path: Path):
    firing, quiet = CASES[alert.name]
    expected = {
        "exp_labels": {"severity": alert.severity},
        "exp_annotations": {"summary": alert.summary, "next_step": alert.next_step},
    }
    labels = {"operation": "claim"} if alert.name == "TwicesafeStoreSlow" else {}
    expected["exp_labels"] |= labels
    tests = [
        {
            "interval": "1m",
            "input_series": [
                {"series": f"twicesafe_{name}", "values": values} for name, values in series.items()
            ],
            "alert_rule_test": [
                {"eval_time": "60m", "alertname": alert.name, "exp_alerts": alerts}
            ],
        }
        for series, alerts in ((firing, [expected]), (quiet, []))
    ]
    written = tmp_path / "test.json"
    written.write_text(json.dumps({"rule_files": [str(FILES / RULES_FILE)], "tests": tests}))
    assert "SUCCESS" in run(checker, "test", "rules", str(written))


# --- the dashboard -----------------------------------------------------------------------------


def expressions() -> Iterator[str]:
    for panel in json.loads((FILES / DASHBOARD_FILE).read_text())["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))


def test_the_dashboard_shows_every_metric():
    shown = " ".join(expressions())
    assert [row.name for row in METRICS if row.full_name not in shown] == []


def test_no_two_panels_of_the_dashboard_overlap():
    panels = json.loads((FILES / DASHBOARD_FILE).read_text())["panels"]
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        covered = {
            (place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])
        }
        assert not cells & covered, panel["title"]
        assert place["x"] + place["w"] <= 24
        cells |= covered
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_every_query_of_the_dashboard_is_valid(checker: str, tmp_path: Path):
    """As rules, because promtool checks those without a server."""
    rules = [
        {"record": f"panel:{number}", "expr": query.replace("$__rate_interval", "5m")}
        for number, query in enumerate(expressions())
    ]
    written = tmp_path / "queries.json"
    written.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert "SUCCESS" in run(checker, "check", "rules", str(written))


# --- a real scrape -----------------------------------------------------------------------------


@pytest.fixture
def example() -> Iterator[str]:
    port = free_port()
    command = [sys.executable, str(ROOT / "examples/metrics.py"), str(port)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    yield f"127.0.0.1:{port}"
    process.kill()
    process.wait()


@pytest.fixture
def prometheus(example: str) -> Iterator[Prometheus]:
    try:
        server = Prometheus(example, str(FILES / RULES_FILE))
    except NoServerError as reason:
        pytest.skip(f"prometheus: {reason}")
    server.prepare()
    server.start()
    yield server
    server.remove()


def test_a_real_prometheus_reads_a_running_example(prometheus: Prometheus):
    def asked(query: str) -> dict[str, float]:
        return {
            "".join(v for k, v in one["metric"].items() if k in ("outcome", "state", "le")): float(
                one["value"][1]
            )
            for one in prometheus.query(query)
        }

    until(lambda: asked("twicesafe_records").get("completed") == 2)
    assert asked("twicesafe_deliveries_total > 0") == {"first": 2, "replayed": 2}
    assert asked("twicesafe_duplicate_age_seconds_count") == {"": 2}
    assert asked("twicesafe_store_seconds_bucket{le='+Inf',operation='complete'}") == {"+Inf": 2}
    assert asked("twicesafe_records")["held"] == 0
    loaded: Any = prometheus._get("rules")["groups"][0]["rules"]
    assert {rule["health"] for rule in loaded} <= {"ok", "unknown"}
    assert len(loaded) == len(ALERTS)
    assert [alert for alert in prometheus.alerts() if alert["state"] == "firing"] == []
