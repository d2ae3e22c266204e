"""``twicesafe bench``: figures that add up, in a place of its own that is gone afterwards."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.cli.line import Line
from twicesafe import Receiver
from twicesafe._bench import scenarios, timing
from twicesafe._bench.place import own_place
from twicesafe._bench.timing import MeasuredTimes, with_threads

SHORT = ("bench", "--seconds", "0.05", "--callers", "1", "--callers", "4", "--batch", "10")


def test_every_scenario_is_measured_in_both_modes(line: Line):
    data = line(*SHORT, "--json").data
    found = [(r["mode"], r["scenario"], r["callers"], r["batch"]) for r in data["results"]]
    assert found == [
        (mode, *rest)
        for mode in ("sync", "async")
        for rest in [
            ("first", 1, None),
            ("first", 4, None),
            ("duplicate", 1, None),
            ("duplicate", 4, None),
            ("batch", 1, 10),
            ("herd", 100, None),
        ]
    ]
    for result in data["results"]:
        assert result["messages"] >= (result["batch"] or 1)
        assert 0 < result["p50_ms"] <= result["p99_ms"]
        assert result["per_second"] == pytest.approx(
            result["messages"] / result["seconds"], rel=0.01
        )


def test_the_users_records_are_not_touched_and_nothing_is_left(line: Line, tmp_path: Path):
    with Receiver.open(line.url) as receiver:
        receiver.process("mine", lambda: 1)
    before = sorted(path.name for path in tmp_path.iterdir())
    assert line(*SHORT, "--scenarios", "first,duplicate", "--json").status == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    with Receiver.open(line.url) as receiver:
        assert receiver.stats().total == 1


def test_the_table_fits_a_terminal_and_the_page_needs_nothing_else(line: Line, tmp_path: Path):
    page = tmp_path / "report.html"
    ran = line(*SHORT, "--html", str(page))
    assert ran.status == 0
    shown = [line for line in ran.out.splitlines() if str(tmp_path) not in line]  # as long as it is
    assert max(map(len, shown)) <= 80
    text = page.read_text("utf-8")
    assert text.count("<rect") == 10  # a herd has no throughput worth a bar
    assert "batches of 10, 1 thread" in text
    assert not re.search(r"(src|href)=|@import|url\(|<script", text)


@pytest.mark.parametrize("width", [60, 80, 100])
def test_the_numbers_are_whole_at_every_width(
    line: Line, monkeypatch: pytest.MonkeyPatch, width: int
):
    def measured(*_: object) -> list[scenarios.BenchResult]:
        step = scenarios.Scenario("batch", "sync", 1, 100)
        return [scenarios.BenchResult(step, 1_234_567, 1.0, 0.09999, 0.09999, 100.25)]

    monkeypatch.setattr("twicesafe._cli.bench.run", measured)
    monkeypatch.setenv("COLUMNS", str(width))
    said = line("bench", "--store", "memory://", store=False).out
    assert max(map(len, said.splitlines())) <= width
    assert {"1,234,567/s", "99.99", "100.25"} <= set(said.split())
    assert said.split().count("ms") == 2
    assert ("█" in said) == (width >= 100)


def test_a_page_that_cannot_be_written_is_reported_before_anything_is_measured(
    line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("twicesafe._cli.bench.run", None)
    ran = line(*SHORT, "--html", str(tmp_path / "nowhere" / "x.html"), "--json")
    assert (ran.status, ran.fault["type"]) == (2, "UsageError")


def test_a_password_reaches_neither_page_nor_screen(line: Line):
    wrong = line("bench", "--store", "redis://:hunter2@127.0.0.1:1", "--json", store=False)
    assert wrong.status == 3
    assert "hunter2" not in wrong.out + wrong.err


def test_memory_has_no_round_trips(line: Line):
    data = line(*SHORT, "--scenarios", "first", "--store", "memory://", "--json", store=False).data
    assert {r["round_trips_per_call"] for r in data["results"]} == {None}


@pytest.mark.parametrize("names", ["first,nonsense", " , "])
def test_an_unknown_scenario_is_refused_before_anything_is_made(line: Line, names: str):
    ran = line("bench", "--scenarios", names, "--json")
    assert ran.status == 2
    assert "known: first, duplicate, batch, herd" in ran.fault["message"]


def test_load_never_goes_to_a_store_it_was_not_sent_to(line: Line, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TWICESAFE_STORE_URL", line.url)
    assert line("bench", "--json", store=False).status == 2


# --- servers: exact round trips, and nothing left ----------------------------------------------------


def round_trips(data: Any) -> dict[tuple[str, str], float]:
    return {
        (r["mode"], r["scenario"]): r["round_trips_per_call"]
        for r in data["results"]
        if r["callers"] == 1
    }


@pytest.mark.parametrize("driver", ["", "+asyncpg"])
def test_on_postgresql(line: Line, postgres_url: str, driver: str):
    import psycopg

    url = postgres_url.replace("://", f"{driver}://") + "?table=shop"
    found = round_trips(line(*SHORT, "--store", url, "--json", store=False).data)
    for mode in ("sync", "async"):
        assert found[mode, "first"] == found[mode, "batch"] == 2
        assert found[mode, "duplicate"] == 1
    with psycopg.connect(postgres_url) as connection:
        left = connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
        ).fetchall()
    assert left == []


def test_on_valkey(line: Line, valkey: Any, valkey_url: str):
    found = round_trips(line(*SHORT, "--store", valkey_url, "--json", store=False).data)
    for mode in ("sync", "async"):
        assert found[mode, "first"] == found[mode, "batch"] == 2
        assert found[mode, "duplicate"] == 1
    prefix = valkey_url.rpartition("=")[2]
    with valkey.client() as client:
        assert list(client.scan_iter(f"{prefix}*")) == []


def test_on_a_cluster_every_node_is_cleaned(line: Line, valkey_cluster: Any):
    with valkey_cluster.fresh() as url:
        ran = line(*SHORT, "--scenarios", "first", "--store", url, "--json", store=False)
        assert ran.status == 0
        prefix = url.rpartition("=")[2]
        for node in valkey_cluster.nodes:
            with node.client() as client:
                assert list(client.scan_iter(f"{prefix}*")) == []


def test_on_mariadb(line: Line, mariadb: Any, mariadb_url: str):
    import pymysql

    found = round_trips(line(*SHORT, "--store", mariadb_url, "--json", store=False).data)
    for mode in ("sync", "async"):
        assert found[mode, "first"] == found[mode, "batch"] == 2
        assert found[mode, "duplicate"] == 1
    database = mariadb_url.rpartition("/")[2]
    with pymysql.connect(host="127.0.0.1", port=mariadb.port, user="root") as connection:
        cursor = connection.cursor()
        cursor.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = %s", (database,)
        )
        assert cursor.fetchall() == ()


# --- ends ----------------------------------------------------------------------------------------


# A test run in the background may ignore SIGINT, and its children would too.
INTERRUPTIBLE = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("twicesafe", run_name="__main__")
"""


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_nothing(tmp_path: Path, kind: signal.Signals):
    command = [sys.executable, "-c", INTERRUPTIBLE, "bench", "--seconds", "60"]
    command += ["--store", f"sqlite:///{tmp_path}/keys.db", "--callers", "8"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until = time.monotonic() + 120
    while not list(tmp_path.glob("*_bench_*-wal")) and time.monotonic() < until:
        time.sleep(0.01)
    assert list(tmp_path.glob("*_bench_*"))
    try:
        # Python drops an interrupt that arrives in a finalizer; then a person presses Ctrl-C again.
        for seconds in (60, 60):
            process.send_signal(kind)
            with suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
                break
        assert process.returncode == 130
    finally:
        process.kill()
        process.wait()
    assert list(tmp_path.iterdir()) == []


def test_a_failing_run_leaves_nothing(tmp_path: Path):
    def fails() -> None:
        with own_place(f"sqlite:///{tmp_path}/keys.db") as url:
            with Receiver.open(url) as receiver:
                receiver.process("k", lambda: 1)
            assert list(tmp_path.iterdir()) != []
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert list(tmp_path.iterdir()) == []


def test_one_failing_caller_ends_the_others():
    def fails(caller: int, turn: int) -> None:
        if caller == 0:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        with_threads(4, 60, fails)


def test_an_interrupt_before_all_callers_have_begun_ends_those_who_have(
    monkeypatch: pytest.MonkeyPatch,
):
    begun: list[int] = []

    class Interrupted(ThreadPoolExecutor):
        def submit(self, *args: Any, **kwargs: Any) -> Any:
            if len(begun) == 2:
                raise KeyboardInterrupt
            begun.append(1)
            return super().submit(*args, **kwargs)

    monkeypatch.setattr(timing, "ThreadPoolExecutor", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        with_threads(4, 60, lambda caller, turn: None)


def test_percentiles_are_calls_that_happened():
    seen = MeasuredTimes([0.4, 0.1, 0.3, 0.2])
    assert (seen.at(0.5), seen.at(0.99)) == (0.3, 0.4)


def test_a_plan_is_bounded():
    plan = scenarios.BenchPlan(callers=(1, 2), batches=(10, 20), scenarios=("first", "batch"))
    assert len(plan.all_steps()) == 2 * (2 + 2)
