"""PrometheusObserver: what a receiver does, in a registry; one process or several."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tests.receiver.bench import Bench, Counter
from twicesafe import (
    ConfigurationError,
    FingerprintMismatchError,
    Key,
    State,
    StillInProgressError,
)
from twicesafe import events as ev
from twicesafe.observers import PrometheusObserver


class Page:
    """A registry with an observer, and what it says."""

    def __init__(self, **settings: Any) -> None:
        self.registry = CollectorRegistry()
        self.observer = PrometheusObserver(self.registry, **settings)

    def __getitem__(self, name: str) -> float:
        """``deliveries_total``, ``deliveries_total:first``: the value, or 0."""
        metric, _, label = name.partition(":")
        values = [
            sample.value
            for family in self.registry.collect()
            for sample in family.samples
            if sample.name == f"twicesafe_{metric}"
            and (not label or label in sample.labels.values())
        ]
        return sum(values)


@pytest.fixture
def page() -> Page:
    return Page()


def test_deliveries_are_counted_by_outcome(bench: Bench, page: Page):
    receiver = bench.new_receiver(observers=[page.observer], fingerprint=True)
    counter = Counter()
    bench.call(receiver.process, "k", bench.in_mode(counter.quick), 1)
    bench.clock.advance(90)
    bench.call(receiver.process, "k", bench.in_mode(counter.quick), 1)
    with pytest.raises(FingerprintMismatchError):
        bench.call(receiver.process, "k", bench.in_mode(counter.quick), 2)
    assert page["deliveries_total:first"] == 1
    assert page["deliveries_total:replayed"] == 1
    assert page["deliveries_total:mismatch"] == 1
    assert page["deliveries_total"] == 3
    assert page["duplicate_age_seconds_count"] == 1
    assert page["duplicate_age_seconds_sum"] == 90
    assert page["duplicate_age_window_ratio_sum"] == pytest.approx(90 / 86400)
    assert page["handler_seconds_count"] == 1
    assert page["store_seconds_count:claim"] >= 1
    assert page["store_seconds_count:complete"] == 1


def test_a_rerun_says_why(bench: Bench, page: Page):
    receiver = bench.new_receiver(observers=[page.observer])

    def fail() -> None:
        raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        bench.call(receiver.process, "k", bench.in_mode(fail))
    bench.call(receiver.process, "k", bench.in_mode(Counter().quick))
    assert page["failures_total:false"] == 1
    assert page["reruns_total:failed"] == 1
    assert page["deliveries_total:rerun"] == 1
    assert page["handler_seconds_count"] == 2


def test_a_conflict_is_a_wait_or_a_refusal(bench: Bench, page: Page):
    receiver = bench.new_receiver(observers=[page.observer])
    receiver = receiver.options(policy=receiver.policy.replace(in_flight="reject"))
    counter = Counter()
    first = bench.start(bench.call, receiver.process, "k", bench.in_mode(counter.slow))
    assert counter.entered.wait(60)
    with pytest.raises(StillInProgressError):
        bench.call(receiver.process, "k", bench.in_mode(counter.quick))
    counter.go_on.set()
    first.result(120)
    assert page["conflicts_total:refused"] == 1
    assert page["deliveries_total:in_progress"] == 1


def test_gauges_come_from_samples(page: Page):
    page.observer(ev.StoreSampled({State.HELD: 2, State.COMPLETED: 5}, 1, 3, 60.0, 4096))
    assert page["records:held"] == 2
    assert page["records:completed"] == 5
    assert page["records:parked"] == 0
    assert (page["records_stuck"], page["records_expired"]) == (1, 3)
    assert (page["oldest_expired_seconds"], page["store_bytes"]) == (60, 4096)
    page.observer(ev.OutboxSampled(7, 1.5, 2, 1, 0, 3))
    assert (page["outbox_pending_messages"], page["outbox_lag_seconds"]) == (7, 1.5)
    assert page["outbox_parked_lanes"] == 1


def test_what_may_happen_is_shown_as_0_before_it_does(page: Page):
    """Prometheus sees an increase only from a number that was there: an alert must see the first."""
    shown = {
        (sample.name, *sample.labels.values())
        for family in page.registry.collect()
        for sample in family.samples
    }
    assert ("twicesafe_lease_losses_total",) in shown
    assert ("twicesafe_reruns_total", "retention_expired") in shown
    assert ("twicesafe_store_failures_total", "claim") in shown
    assert not any(name == "twicesafe_records" for name, *_ in shown), "a gauge is not known yet"
    assert not any(name.startswith("twicesafe_proxy") for name, *_ in shown)


def test_a_scope_is_a_label_only_if_asked_for(page: Page):
    page.observer(ev.Started(Key("k", ("tenant-7",)), 1, None))
    assert page["deliveries_total:tenant-7"] == 0
    scoped = Page(scope=lambda key: key.scope[0])
    scoped.observer(ev.Started(Key("k", ("tenant-7",)), 1, None))
    scoped.observer(ev.Swept(3, 4))
    assert scoped["deliveries_total:tenant-7"] == 1
    assert scoped["swept_records_total"] == 3


@pytest.mark.parametrize("label", [None, 7, b"x"])
def test_a_scope_that_is_no_text_breaks_no_scrape(label: Any):
    page = Page(scope=lambda key: label)
    page.observer(ev.Replayed(Key("k"), 1.0, False, 60.0, b"", None))
    assert b"twicesafe_deliveries_total" in generate_latest(page.registry)


@pytest.mark.parametrize("place", ["", "missing", "file"])
def test_a_directory_that_cannot_be_used_is_named_at_once(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").touch()
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path / place) if place else "")
    with pytest.raises(ConfigurationError, match="PROMETHEUS_MULTIPROC_DIR"):
        PrometheusObserver(CollectorRegistry())


def test_observers_of_one_registry_share_its_metrics(page: Page):
    other = PrometheusObserver(page.registry)
    for observer in (page.observer, other):
        observer(ev.Swept(1, 1))
    assert page["sweeps_total"] == 2
    with pytest.raises(ConfigurationError, match="scope="):
        PrometheusObserver(page.registry, scope=lambda key: "x")


MANY = """
    import os, sys
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.multiprocess import MultiProcessCollector
    from twicesafe import Receiver
    from twicesafe import events as ev
    from twicesafe.observers import PrometheusObserver

    observer = PrometheusObserver()
    receiver = Receiver.open("sqlite:///" + sys.argv[1], observers=[observer])
    receiver.process("before the fork", int)
    children = []
    for number in range(3):
        child = os.fork()
        if child == 0:
            receiver.process(f"k-{number}", int)
            receiver.process("shared", int)
            observer(ev.StoreSampled({}, 0, number, 0.0, None))
            os._exit(0)
        children.append(child)
        os.waitpid(child, 0)
    registry = CollectorRegistry()
    MultiProcessCollector(registry)
    sys.stdout.write(generate_latest(registry).decode())
"""


def test_many_processes_are_one_page(tmp_path: Path):
    numbers = tmp_path / "numbers"
    numbers.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(MANY), str(tmp_path / "keys.db")],
        env={"PROMETHEUS_MULTIPROC_DIR": str(numbers), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = dict(line.rsplit(" ", 1) for line in done.stdout.splitlines() if line[0] != "#")
    assert lines['twicesafe_deliveries_total{outcome="first"}'] == "5.0"
    assert lines['twicesafe_deliveries_total{outcome="replayed"}'] == "2.0"
    assert lines["twicesafe_records_expired"] == "2.0", "the most recent, not a sum"
    assert lines['twicesafe_store_seconds_count{operation="complete"}'] == "5.0"


OWN_PAGE = """
    from prometheus_client import generate_latest
    from twicesafe import events as ev
    from twicesafe.observers import PrometheusObserver

    observer = PrometheusObserver()
    for event in (ev.StoreSampled({}, 3, 0, 0.0, None), ev.Swept(2, 2)):
        observer(event)
    print(generate_latest().decode())
"""


def test_one_process_of_many_shows_no_gauge_that_was_never_set(tmp_path: Path):
    """The page of `twicesafe relay --metrics`: it said that the circuit is closed and the store has 0 bytes."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(OWN_PAGE)],
        env={"PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = dict(
        line.rsplit(" ", 1) for line in done.stdout.splitlines() if line and line[0] != "#"
    )
    assert lines["twicesafe_records_stuck"] == "3.0"
    assert lines["twicesafe_sweeps_total"] == "1.0"
    assert lines['twicesafe_deliveries_total{outcome="first"}'] == "0.0"
    gauges = ("twicesafe_breaker_open", "twicesafe_store_bytes", "twicesafe_outbox_lag_seconds")
    assert not lines.keys() & set(gauges)
