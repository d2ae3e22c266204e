"""The cases over HTTP: a FastAPI application behind each layer, driven by wrk, one process each.

The floor is the bare application. A lap is a second of wrk with 32 connections; the servers of a
case are all up and take turns, so a ratio is that of the same round. What is counted is wall time per
request, and beside it the processor time of the server's process, which other programs on the machine
hardly change, and which leaves out the store's. A lap with an answer other than 2xx is no lap: the
contestant has failed.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from tests.servers import free_port

from . import engines, ours, peers
from .case import FLOOR, Target
from .measure import REPEATS, Measured, Runner, summed_up, values
from .workload import Contestant, Keys, Lap

CONNECTIONS = 32
PORT = "{port}"
"""Stands for a server's port among its words."""
SCRIPT = Path(__file__).with_name("web.lua")
SECTION = "HTTP: a FastAPI application, its time per request"


Words: TypeAlias = "Callable[[list[Server]], list[str]]"


@dataclass(frozen=True)
class WebCase:
    """A `Case` that is driven from outside; the report sees no difference."""

    id: str
    title: str
    store: str
    keys: str
    """none, fresh, or one key for all."""
    target: Target | None = None
    quick: bool = True
    section: str = SECTION
    gains: bool = False
    engine: str = ""
    proxied: bool = False
    """Through our proxy; the floor is the same proxy without the layer."""

    def run(self, folder: Path, rounds: int) -> list[Measured]:
        absent = _missing(self)
        if shutil.which("wrk") is None:
            raise engines.NoServerError("wrk: not installed here")
        folder.mkdir(parents=True)
        names = [FLOOR, ours.NAME, peers.IDEMKIT, peers.ASGI_IDEMPOTENCY_HEADER]
        running: list[Server] = []
        try:
            for name, words in self._words(folder, [n for n in names if n not in absent]):
                running.append(Server(name, words(running)))
            contestants = [server for server in running if server.name in names]
            laps = _laps(contestants, self.keys, max(3, round(rounds / 3)), self.target)
        finally:
            for server in running:
                server.stop()
        return [
            Measured(name, absent=absent[name])
            if name in absent
            else summed_up(laps[name], laps[FLOOR], "wall")
            for name in names
        ]

    def _words(self, folder: Path, names: list[str]) -> Iterator[tuple[str, Words]]:
        """Who runs, and with which words, when the ones before are up."""
        url = self._url(folder)
        if not self.proxied:
            for name in names:
                yield name, partial(_app, name, url)
            return
        yield "upstream", partial(_app, FLOOR, "")
        yield FLOOR, _bare_proxy
        yield ours.NAME, partial(_proxy, url)

    def _url(self, folder: Path) -> str:
        if self.store == "sqlite":
            return f"sqlite:///{folder.absolute()}/keys.db"
        return str(engines.server(self.engine).url) if self.engine else ""


class Server:
    """One contestant, up and waiting."""

    def __init__(self, name: str, words: list[str]) -> None:
        self.name, self.port = name, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        told = [word.replace(PORT, str(self.port)) for word in words]
        self._process = subprocess.Popen(
            [sys.executable, "-m", *told], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while not self._is_up():
            if self._process.poll() is not None:
                raise RuntimeError(f"{name} did not start")
            time.sleep(0.05)

    def _is_up(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True

    def spent(self) -> float:
        """Seconds of processor time until now."""
        words = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def lap(self, key: str) -> Lap:
        """Seconds per request."""
        before = self.spent()
        done = subprocess.run(
            ["wrk", "-t1", f"-c{CONNECTIONS}", "-d1s", "--timeout", "20s", "-s", str(SCRIPT),
             self.url],
            env={**os.environ, "KEY": key},
            capture_output=True,
            text=True,
            check=True,
        )  # fmt: skip
        found = re.search(r"RESULT (\d+) (\d+) (\d+) (\d+)", done.stdout)
        assert found is not None, done.stdout
        requests, microseconds, refused, lost = map(int, found.groups())
        if refused or lost or not requests:
            raise RuntimeError(
                f"{self.name}: {refused} of {requests} not answered with 2xx, {lost} lost"
            )
        return Lap(microseconds / 1e6, self.spent() - before).per(requests)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


def _app(name: str, url: str, _: list[Server]) -> list[str]:
    return ["benchmarks.web_app", name, url, PORT]


def _bare_proxy(before: list[Server]) -> list[str]:
    return ["benchmarks.bare_proxy", before[0].url, f"127.0.0.1:{PORT}"]


def _proxy(url: str, before: list[Server]) -> list[str]:
    listen = f"127.0.0.1:{PORT}"
    return ["twicesafe", "proxy", "--upstream", before[0].url, "--listen", listen, "--store", url]


def _laps(
    running: list[Server], keys: str, rounds: int, target: Target | None = None
) -> dict[str, Runner]:
    runners = {server.name: Runner(Contestant(server.name), Keys(fresh=True)) for server in running}
    run = uuid.uuid4().hex
    for server in running:
        _warm_up(server, f"{run}-again", runners[server.name])
    for again in range(REPEATS):
        for turn in range(again * rounds, (again + 1) * rounds):
            key = {"none": "none", "fresh": f"fresh:{run}-{turn}"}.get(keys, f"{run}-again")
            _one_round(running, runners, turn, key)
        ours_and_floor = runners[ours.NAME], runners[FLOOR]
        if target is None or not target.is_undecided(*values(*ours_and_floor, "wall")):
            break
    return runners


def _one_round(running: list[Server], runners: dict[str, Runner], turn: int, key: str) -> None:
    start = turn % len(running)
    for server in running[start:] + running[:start]:  # each is first in turn
        runner = runners[server.name]
        if runner.failed:
            continue
        try:
            runner.laps[turn] = server.lap(key)
        except Exception as error:
            if server.name in (FLOOR, ours.NAME):
                raise
            runner.failed = f"failed here ({error})"


def _warm_up(server: Server, key: str, runner: Runner) -> None:
    """Every path of the code once or more; `key` is known after it, and its repeats are marked."""
    import httpx

    order = b'{"amount": 129900, "currency": "EUR", "items": ["a", "b"]}'
    headers = {"Content-Type": "application/json", "Authorization": "Bearer bench"}
    with httpx.Client(base_url=server.url, headers=headers, timeout=60) as client:
        for number in range(50):
            client.post("/charges", content=order)
            client.post("/charges", content=order, headers={"Idempotency-Key": f"{key}-{number}"})
        repeats = [
            client.post("/charges", content=order, headers={"Idempotency-Key": key})
            for _ in range(50)
        ]
    last = repeats[-1]
    if last.status_code != 201 or (server.name != FLOOR and not _is_marked(last.headers)):
        runner.failed = f"does not replay: {last.status_code}"
        assert server.name not in (FLOOR, ours.NAME), runner.failed


def _is_marked(headers: Mapping[str, str]) -> bool:
    return any("replayed" in name.lower() for name in headers)


def _missing(case: WebCase) -> dict[str, str]:
    absent = {
        name: f"not installed here ({lacking})"
        for name in (peers.IDEMKIT, peers.ASGI_IDEMPOTENCY_HEADER)
        if (lacking := peers.lacks(name))
    }
    if case.proxied:
        absent |= dict.fromkeys((peers.IDEMKIT, peers.ASGI_IDEMPOTENCY_HEADER), "has no proxy")
    if case.store == "sqlite":
        absent |= dict.fromkeys(
            (peers.IDEMKIT, peers.ASGI_IDEMPOTENCY_HEADER), "has no SQLite store"
        )
    return absent


def web() -> Iterator[WebCase]:
    yield WebCase(
        "http/no-key", "Valkey, without a key", "valkey", "none", Target(1.05), engine="valkey"
    )
    yield WebCase("http/valkey/first", "Valkey, first", "valkey", "fresh", Target(1.65), engine="valkey")  # fmt: skip
    yield WebCase("http/valkey/replay", "Valkey, replay", "valkey", "again", Target(0.85), engine="valkey")  # fmt: skip
    for what, keys in (("no-key", "none"), ("first", "fresh"), ("replay", "again")):
        shown = f"our proxy of the bare proxy, Valkey, {what.replace('-', ' ')}"
        yield WebCase(
            f"http/proxy/{what}", shown, "valkey", keys, quick=False, engine="valkey", proxied=True
        )
    for store, shown in (("memory", "memory"), ("sqlite", "SQLite FULL")):
        yield WebCase(f"http/{store}/first", f"{shown}, first", store, "fresh", quick=False)
        yield WebCase(f"http/{store}/replay", f"{shown}, replay", store, "again", quick=False)
