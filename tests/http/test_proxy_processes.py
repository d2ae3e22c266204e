"""The proxy as users run it: one command, worker processes, an upstream in another process and language.

``TWICESAFE_KILLS=200`` kills the workers that often in mid-request; by default a few times.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from tests.http.stage import Reply, Stage, read
from tests.http.storms import storm
from tests.polling import until
from tests.servers import free_port
from twicesafe import Receiver, State

KILLS = int(os.environ.get("TWICESAFE_KILLS", "4"))
HERE = Path(__file__).parent
LANGUAGES = {"node": shutil.which("node"), "python": sys.executable}
QUIET = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "text": True}


class Shop:
    """The upstream: its own process."""

    def __init__(self, folder: Path, language: str) -> None:
        if LANGUAGES[language] is None:
            pytest.skip(f"there is no {language} here")
        self.ledger = folder / "ledger"
        self.ledger.touch()
        script = HERE / {"node": "shop.mjs", "python": "shop.py"}[language]
        words = [LANGUAGES[language], str(script), str(self.ledger)]
        self._process: Any = subprocess.Popen(words, **QUIET)  # type: ignore[call-overload]
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()

    def effects(self) -> Counter[str]:
        lines = self.ledger.read_text().splitlines()
        return Counter(line for line in lines if not line.endswith("begins"))

    def wait_for(self, line: str) -> None:
        while line not in self.ledger.read_text().splitlines():
            pass

    def has_begun(self, key: str, hang: str, connection: socket.socket) -> bool:
        """True when the request has come as far as it will; False: it was answered instead."""
        line = f"{key} begins" if hang == "before" else key
        while line not in self.ledger.read_text().splitlines():
            if select.select([connection], [], [], 0.01)[0]:
                return False
        return True


class Proxy:
    """``twicesafe proxy``, started by its command line."""

    def __init__(self, shop: Shop, folder: Path, *words: str, store: str = "", **http: Any) -> None:
        self.store = store or f"sqlite:///{folder / 'keys.db'}"
        command = [sys.executable, "-m", "twicesafe", "proxy", "--json", "--upstream", shop.url,
                   "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", *words]  # fmt: skip
        variables = {f"TWICESAFE_HTTP_{name.upper()}": str(value) for name, value in http.items()}
        environ = {**os.environ, **variables, "TWICESAFE_STORE_URL": self.store}
        self.errors = folder / "stderr"
        with self.errors.open("wb") as told:
            self.process: Any = subprocess.Popen(  # type: ignore[call-overload]
                command, cwd=folder, env=environ, stderr=told, **QUIET
            )
        self.greeting = self._greeting()

    def _greeting(self) -> dict[str, str]:
        text = ""
        while not text.rstrip().endswith("}"):
            line = self.process.stdout.readline()
            assert line, self.errors.read_text()
            text += line
        greeting: dict[str, str] = json.loads(text)
        return greeting

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(60)
        self.process.stdout.close()

    def workers(self) -> list[int]:
        pid = self.process.pid
        return [int(w) for w in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def connect(self) -> socket.socket:
        host, _, port = self.greeting["listening"].removeprefix("http://").partition(":")
        return socket.create_connection((host, int(port)), 60)

    def send(self, key: str, *fields: tuple[str, str]) -> Reply:
        with self.connect() as connection:
            connection.sendall(self.request(key, *fields))
            return read(connection)

    def request(self, key: str, *fields: tuple[str, str]) -> bytes:
        return Stage.request(None, key, b"{}", "POST", "/charges", *fields)  # type: ignore[arg-type]

    def admin(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(self.greeting["admin"] + path, timeout=60) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def wait_for_log(self, words: str) -> None:
        while words not in self.errors.read_text():
            assert self.process.poll() is None


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def shop(tmp_path: Path, opened: ExitStack, request: pytest.FixtureRequest) -> Shop:
    return opened.enter_context(closing(Shop(tmp_path, getattr(request, "param", "python"))))


@pytest.mark.item("C1", "O2")
@pytest.mark.parametrize(
    "shop, engine",
    [("node", "sqlite"), ("python", "postgres"), ("node", "valkey")],
    indirect=["shop"],
)
def test_a_storm_over_four_workers_has_one_effect_and_one_answer(
    shop: Shop, engine: str, tmp_path: Path, request: pytest.FixtureRequest, opened: ExitStack
):
    store = "" if engine == "sqlite" else request.getfixturevalue(f"{engine}_url")
    waits = {"wait": 60, "max_waiters": 1000}
    proxy = Proxy(shop, tmp_path, "--workers", "4", store=store, **waits)
    opened.enter_context(closing(proxy))
    assert len(proxy.workers()) == 4
    storm(proxy, shop.effects)


@pytest.mark.item("E4", "E8")
@pytest.mark.parametrize("shop", ["node"], indirect=True)
def test_killed_workers_leave_no_second_effect(shop: Shop, tmp_path: Path, opened: ExitStack):
    proxy = Proxy(shop, tmp_path, "--workers", "2", lease=0.3)
    opened.enter_context(closing(proxy))
    ended: dict[str, str] = {}
    for number in range(KILLS):
        key, hang = f"k{number}", ("before", "after", "")[number % 3]
        with proxy.connect() as connection:
            connection.sendall(proxy.request(key, ("X-Hang", hang)))
            # On a busy machine a claim may come too late for its short lease: it is answered then.
            answered = hang and not shop.has_begun(key, hang, connection)
            for pid in proxy.workers():
                os.kill(pid, signal.SIGKILL)
        reply = proxy.send(key)
        while reply.problem == "in-progress":  # until the dead one's lease is over
            reply = proxy.send(key)
        again = proxy.send(key)
        assert (again.status, again.body) == (reply.status, reply.body)
        may_run = answered or not hang
        assert reply.problem == "outcome-unknown" or (may_run and reply.status == 201)
        ended[key] = reply.problem or "answered"
    effects = shop.effects()
    assert max(effects.values(), default=0) <= 1
    for key, end in ended.items():
        assert effects[key] == 1 or end == "outcome-unknown"
    with Receiver.open(proxy.store) as operator:
        held = list(operator.records(state=State.HELD, limit=1000))
    assert {r.value for r in held} == {k for k, end in ended.items() if end == "outcome-unknown"}


@pytest.mark.item("E5")
def test_sigterm_lets_running_requests_end(shop: Shop, tmp_path: Path, opened: ExitStack):
    proxy = Proxy(shop, tmp_path, "--workers", "2")
    opened.enter_context(closing(proxy))
    gate = shop.ledger.with_suffix(".wait")
    gate.touch()
    with ThreadPoolExecutor(2) as pool, proxy.connect() as gone:
        stays = pool.submit(proxy.send, "stays", ("X-Hang", "wait"))
        gone.sendall(proxy.request("gone", ("X-Hang", "wait")))
        for key in ("stays", "gone"):
            shop.wait_for(f"{key} begins")
        gone.close()
        proxy.process.terminate()
        gate.unlink()
        assert stays.result(60).status == 201
    assert proxy.process.wait(60) == 0
    with Receiver.open(proxy.store) as operator:
        records = list(operator.records())
    assert {(r.value, r.state) for r in records} == {
        ("stays", State.COMPLETED),
        ("gone", State.COMPLETED),
    }


@pytest.mark.item("E4")
def test_what_does_not_end_within_its_grace_is_held(shop: Shop, tmp_path: Path, opened: ExitStack):
    (tmp_path / "twicesafe.toml").write_text("[proxy]\ngrace = 0.1\n")
    proxy = Proxy(shop, tmp_path)
    opened.enter_context(closing(proxy))
    with proxy.connect() as connection:
        connection.sendall(proxy.request("k", ("X-Hang", "before")))
        shop.wait_for("k begins")
        proxy.process.send_signal(signal.SIGINT)  # as Ctrl-C
        assert proxy.process.wait(60) == 0
    with Receiver.open(proxy.store) as operator:
        (record,) = operator.records()
    assert record.state is State.HELD


@pytest.mark.item("E8")
def test_workers_end_with_their_supervisor(shop: Shop, tmp_path: Path, opened: ExitStack):
    proxy = Proxy(shop, tmp_path, "--workers", "2")
    opened.enter_context(closing(proxy))
    workers = proxy.workers()
    proxy.process.kill()
    proxy.process.wait(60)
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))


@pytest.mark.item("E9")
def test_a_store_that_is_away_is_reported_and_nothing_is_sent(
    shop: Shop, tmp_path: Path, opened: ExitStack
):
    proxy = Proxy(shop, tmp_path, store=f"redis://127.0.0.1:{free_port()}")
    opened.enter_context(closing(proxy))
    assert proxy.send("k").problem == "store-unavailable"
    assert proxy.admin("/ready")[0] == 503
    assert proxy.admin("/live")[0] == 200
    assert not shop.effects()


def test_sighup_reads_the_settings_again(shop: Shop, tmp_path: Path, opened: ExitStack):
    settings = tmp_path / "twicesafe.toml"
    proxy = Proxy(shop, tmp_path)
    opened.enter_context(closing(proxy))
    first = proxy.workers()
    reply = proxy.send("k")
    settings.write_text("[proxy]\nworkers = 2\n[http]\nreplay_header = 'X-Again'\n")
    proxy.process.send_signal(signal.SIGHUP)
    proxy.wait_for_log("reloaded: 2 workers")
    replays = 1
    while (again := proxy.send("k"))["x-again"] is None:  # until the old one is gone
        assert (again.body, again.replayed) == (reply.body, True)
        replays += 1
    assert (again.body, again["x-again"]) == (reply.body, "true")
    for bad, told in (
        ("[http]\nreplay_heder = 'x'\n", "did you mean 'replay_header'?"),
        ("[proxy]\ngrace = -1\n", "grace=-1"),
        ("no", "is not TOML"),
    ):
        settings.write_text(bad)
        proxy.process.send_signal(signal.SIGHUP)
        proxy.wait_for_log(told)
    while set(first) & set(proxy.workers()):  # an old one may still answer
        pass
    assert proxy.send("k")["x-again"] == "true"
    wanted = [
        'twicesafe_deliveries_total{outcome="first"} 1',  # what the old ones counted, too
        f'twicesafe_deliveries_total{{outcome="replayed"}} {replays + 1}',
    ]
    until(lambda: all(line in proxy.admin("/metrics")[1] for line in wanted))


def test_health_and_metrics_are_not_where_clients_come(
    shop: Shop, tmp_path: Path, opened: ExitStack
):
    proxy = Proxy(shop, tmp_path, "--workers", "2")
    opened.enter_context(closing(proxy))
    assert proxy.admin("/live") == (200, "alive\n")
    until(lambda: proxy.admin("/ready")[0] == 200)  # a worker that is slow to answer is not ready
    until(lambda: json.loads(proxy.admin("/ready")[1])["workers"] == 2)
    for _ in range(3):
        proxy.send("k")
    wanted = ['twicesafe_deliveries_total{outcome="replayed"} 2', "twicesafe_proxy_workers 2"]
    until(lambda: all(line in proxy.admin("/metrics")[1] for line in wanted))
    counted = proxy.admin("/metrics")[1]
    assert proxy.admin("/other")[0] == 404
    for path in ("/live", "/ready", "/metrics"):
        with proxy.connect() as connection:
            connection.sendall(
                f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n".encode()
            )
            assert read(connection).body not in (b"alive\n", counted.encode())
    assert shop.effects()["none"] == 3  # they went to the shop


def test_every_request_is_timed_and_logged_with_its_key(
    shop: Shop, tmp_path: Path, opened: ExitStack
):
    (tmp_path / "twicesafe.toml").write_text(
        '[proxy]\naccess_log = true\nlog_format = "json"\nlog_level = "info"\n'
    )
    proxy = Proxy(shop, tmp_path)
    opened.enter_context(closing(proxy))
    for _ in range(2):
        proxy.send("secret-key")
    until(lambda: proxy.errors.read_text().count('"responded"') == 2)
    lines = [json.loads(line) for line in proxy.errors.read_text().splitlines()]
    first, again = [line for line in lines if line.get("event") == "responded"]
    assert (first["method"], first["route"], first["level"]) == ("POST", "/charges", "info")
    assert (first["outcome"], again["outcome"]) == ("first", "replayed")
    assert first["key"] == again["key"]
    assert len(first["key"]) == 8
    assert first["seconds"] > 0
    assert "secret-key" not in proxy.errors.read_text()
    wanted = [
        "twicesafe_proxy_response_seconds_count 2",
        'store_seconds_count{operation="claim"} 2',
    ]
    until(lambda: all(line in proxy.admin("/metrics")[1] for line in wanted))


def test_without_an_admin_address_there_is_none(shop: Shop, tmp_path: Path, opened: ExitStack):
    proxy = Proxy(shop, tmp_path, "--admin", "")
    opened.enter_context(closing(proxy))
    assert proxy.greeting["admin"] is None


@pytest.mark.parametrize(
    "words, told",
    [
        ((), "no upstream"),
        (("--upstream", "ftp://a"), "is not valid"),
        (("--upstream", "http://a", "--listen", "8080"), "host:port"),
        (("--upstream", "http://a", "--store", "nosuch://"), "no store"),
        (("--upstream", "http://a", "--listen", "127.0.0.1:1", "--admin", "127.0.0.1:1"), "public"),
        (
            ("--upstream", "http://a", "--store", "memory://", "--workers", "2"),
            "not shared between processes",
        ),
    ],
)
def test_settings_that_cannot_be_used_are_reported(
    tmp_path: Path, words: tuple[str, ...], told: str
):
    done = subprocess.run(
        [sys.executable, "-m", "twicesafe", "proxy", *words],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert told in " ".join(done.stderr.split())
