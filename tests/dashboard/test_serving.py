"""``twicesafe dashboard`` as a process: where it listens, who enters, how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry, start_http_server

from tests.dashboard.test_login import TOKEN
from twicesafe import Receiver
from twicesafe import _cli as cli
from twicesafe.observers import PrometheusObserver

COMMAND = [sys.executable, "-W", "error", "-m", "twicesafe", "dashboard", "--json"]


@contextmanager
def running(folder: Path, *options: str, **variables: str) -> Iterator[tuple[Any, dict[str, Any]]]:
    with Receiver.open(f"sqlite:///{folder}/keys.db") as receiver:
        receiver.process("tx-1", int)
    process = subprocess.Popen(
        [*COMMAND, "--store", f"sqlite:///{folder}/keys.db", *options],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        lines = ""
        assert process.stdout is not None
        while not lines.rstrip().endswith("}"):
            line = process.stdout.readline()
            assert line, process.communicate()
            lines += line
        yield process, json.loads(lines)
    finally:
        process.kill()
        process.communicate()


def test_on_this_machine_without_a_login(tmp_path: Path):
    with running(tmp_path, "--listen", "127.0.0.1:0", "--show-keys") as (process, said):
        assert said["login"] is False
        assert "tx-1" in httpx.get(f"{said['url']}/keys").text
        refused = httpx.get(said["url"], headers={"host": "evil.example"})
        assert refused.status_code == 421
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err) == (0, "", "")


def test_with_a_token_it_may_be_reached_from_elsewhere(tmp_path: Path):
    variables = {"TWICESAFE_DASHBOARD_TOKEN": TOKEN}
    with running(tmp_path, "--listen", "0.0.0.0:0", "--host", "ops", **variables) as (_, said):
        assert said["login"] is True
        home = f"http://127.0.0.1:{said['url'].rpartition(':')[2]}/"
        with httpx.Client(base_url=home, headers={"host": "ops"}) as client:
            assert client.get("keys").headers["location"] == "/login"
            page = client.get("login").text
            token = page.partition('name="token" value="')[2].partition('"')[0]
            assert client.post("login", data={"token": token, "secret": TOKEN}).status_code == 303
            assert client.get("keys").status_code == 200


def test_what_a_service_counts_is_read_from_its_metrics(tmp_path: Path):
    registry = CollectorRegistry()
    server, thread = start_http_server(0, addr="127.0.0.1", registry=registry)
    with Receiver.open("memory://", observers=[PrometheusObserver(registry=registry)]) as service:
        for _ in range(3):
            service.process("tx-1", int)
        url = f"http://127.0.0.1:{server.server_port}/metrics"
        with running(tmp_path, "--listen", "127.0.0.1:0", "--metrics", url) as (_, said):
            page = httpx.get(said["url"]).text
    server.shutdown()
    server.server_close()
    thread.join()
    assert "covers 100 % of the 2 duplicates seen" in page
    assert "of your service" in page


@pytest.mark.attack("D18")
def test_without_a_token_it_refuses_other_machines(tmp_path: Path, capsys: Any):
    Receiver.open(f"sqlite:///{tmp_path}/keys.db").close()
    store = ("--store", f"sqlite:///{tmp_path}/keys.db")
    assert cli.main(["dashboard", "--listen", "0.0.0.0:0", *store]) == 2
    assert "there is no login" in capsys.readouterr().err


def test_a_missing_store_is_not_created(tmp_path: Path, capsys: Any):
    path = tmp_path / "none.db"
    assert cli.main(["dashboard", "--store", f"sqlite:///{path}"]) == 3
    assert "there is no store" in capsys.readouterr().err
    assert not path.exists()


def test_a_token_on_the_command_line_is_not_possible(capsys: Any):
    """It would be in the list of processes."""
    assert cli.main(["dashboard", "--token", TOKEN]) == 2
    capsys.readouterr()
