"""The rows that need more than a call: a slow network, several processes, big tables, the HTTP layer."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks import engines, growth, http_layer, inbox, processes
from benchmarks.cases import all_cases, calls
from benchmarks.delay import Delay
from benchmarks.rows import Row, row_of
from benchmarks.running import Run, selected
from tests.servers import free_port


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch):
    """The benchmark uses the tests' own server instead of starting a durable one."""

    def use(**urls: str) -> None:
        monkeypatch.setattr(engines, "_urls", urls)

    return use


def test_every_row_has_its_own_name():
    names = [case.id for case in all_cases()]
    assert len(names) == len(set(names))
    assert set(names) <= set(selected([]))
    assert not any("100000000" in name for name in selected([]))
    assert any("100000000" in name for name in selected([], huge=True))


def test_a_quick_run_leaves_out_what_takes_long(tmp_path: Path):
    chosen = selected(["processes/", "growth/", "outbox"])
    assert chosen
    assert Run(3, 100, quick=True, folder=tmp_path).rows(chosen) == []


def test_a_run_that_was_broken_off_goes_on(tmp_path: Path):
    measured = []

    def work(name: str, run: Run) -> list[Row]:
        measured.append(name)
        if measured == ["a", "b"]:
            raise KeyboardInterrupt
        return [Row(name, "section", "title", {"floor": "1 µs"}, raw={"floor": {"laps": 3}})]

    chosen = {name: partial(work, name) for name in ("a", "b")}
    with pytest.raises(KeyboardInterrupt):
        Run(3, 100, folder=tmp_path).rows(chosen)
    rows = Run(3, 100, folder=tmp_path, resume=True).rows(chosen)
    assert [row.id for row in rows] == ["a", "b"]
    assert rows[0].raw == {"floor": {"laps": 3}}
    assert measured == ["a", "b", "b"]
    Run(4, 100, folder=tmp_path, resume=True).rows(chosen)  # asked for in other words
    assert measured == ["a", "b", "b", "a", "b"]


def test_the_network_delays_both_directions_and_keeps_the_order():
    listening = socket.create_server(("127.0.0.1", 0))

    def echo() -> None:
        connection, _ = listening.accept()
        with connection:
            while data := connection.recv(65536):
                connection.sendall(data)

    thread = threading.Thread(target=echo)
    thread.start()
    delay = Delay(listening.getsockname()[1], 0.05)
    with socket.create_connection(("127.0.0.1", delay.port)) as client:
        began = time.monotonic()
        client.sendall(b"ping")
        assert client.recv(4) == b"ping"
        assert time.monotonic() - began >= 0.05
        sent = b"".join(b"%06d" % number for number in range(20_000))
        writer = threading.Thread(target=client.sendall, args=(sent,))
        writer.start()
        back = b""
        while len(back) < len(sent):
            back += client.recv(65536)
        writer.join()
        assert back == sent
    thread.join()
    listening.close()
    delay.stop()


def test_a_server_that_is_gone_closes_the_connection():
    delay = Delay(free_port(), 0.001)
    with socket.create_connection(("127.0.0.1", delay.port)) as client:
        assert client.recv(1) == b""
    delay.stop()


@pytest.mark.parametrize("door", ["valkey/blocking", "valkey/async"])
def test_a_case_through_the_network(valkey: Any, on: Any, tmp_path: Path, door: str):
    on(valkey=valkey.url)
    (case,) = [each for each in calls() if each.id == f"delayed/{door}/first"]
    found = {each.name: each for each in case.run(tmp_path / "case", rounds=3, lap=0.002)}
    round_trips = 2  # a claim and a completion
    for name in ("floor", "twicesafe"):
        assert found[name].wall is not None
        assert found[name].wall.seconds.low >= round_trips * engines.ROUND_TRIP
    engines._delays.pop("valkey").stop()


def test_several_processes_use_one_store():
    two, four = processes.measured("processes/sqlite-normal/blocking/first", rounds=2, lap=0.002)
    assert [two.id[-1], four.id[-1]] == ["2", "4"]
    assert two.raw["per_second"] > 0
    assert "processor" in two.cells["other clock"]


def test_a_big_table_on_postgresql(postgres_url: str, on: Any, tmp_path: Path):
    import psycopg

    on(postgresql=postgres_url)
    one, two = [each for each in growth.growth((2_000, 3_000)) if each.id.startswith("growth/p")][
        ::2
    ]
    for case, size in ((one, 2_000), (two, 3_000)):
        row = row_of(case, case.run(tmp_path / str(size), rounds=3, lap=0.002))
        assert row.cells["twicesafe"]
        with psycopg.connect(postgres_url) as connection:
            counted = connection.execute("SELECT count(*) FROM growth_keys").fetchone()
            assert counted is not None
            assert counted[0] >= size


def test_a_big_table_on_valkey(valkey: Any, on: Any, tmp_path: Path):
    import redis

    on(valkey=valkey.url)
    (case,) = [
        each for each in growth.growth((2_000,)) if each.id == "growth/valkey/2000/duplicate"
    ]
    row = row_of(case, case.run(tmp_path / "case", rounds=3, lap=0.002))
    assert row.cells["twicesafe"]
    for number, at_least in ((2, 2_000), (1, growth.SPREAD_OUT)):
        with redis.Redis.from_url(growth._database(number, valkey.url)) as client:
            assert client.dbsize() >= at_least
            client.flushdb()


def test_the_http_layer_replays(tmp_path: Path):
    layer = http_layer.with_ours(tmp_path)

    async def ask() -> list[bytes]:
        answers = [await layer.call("key") for _ in range(2)]
        await layer.close()
        return answers

    assert asyncio.run(ask()) == [http_layer.ANSWER] * 2


def test_an_inbox_is_measured_around_the_same_transaction(
    postgres_url: str, on: Any, tmp_path: Path
):
    on(postgresql=postgres_url)
    for case in inbox.inbox_cases():
        row = row_of(case, case.run(tmp_path / case.id, rounds=3, lap=0.002))
        assert set(row.cells) >= {"floor", "twicesafe", "other clock"}
