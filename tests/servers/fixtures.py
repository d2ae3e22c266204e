"""The fixtures: one server per engine and process of the run, started when a test first asks for it.

A server that cannot be had skips its tests by name, with the reason; with ``CI=true`` they fail,
unless the server is built from sources that a machine may not get.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.servers import NoServerError, launch, shared
from tests.servers.kafka import broker


def having(get: Callable[[], Any], engine: str) -> Any:
    """What this returns; without the server the test is skipped, or fails."""
    try:
        return get()
    except NoServerError as reason:
        if os.environ.get("CI") == "true" and not reason.optional:
            pytest.fail(f"{engine}: {reason}")
        pytest.skip(f"{engine}: {reason}")


def _server_fixture(engine: str) -> Any:
    @pytest.fixture(name=engine, scope="session")
    def server() -> Any:
        return having(lambda: shared(engine), engine)

    return server


def _url_fixture(engine: str) -> Any:
    @pytest.fixture(name=f"{engine}_url")
    def url() -> Iterator[str]:
        server = having(lambda: shared(engine), engine)
        with server.fresh() as fresh:
            yield fresh

    return url


postgres, postgres_url = _server_fixture("postgres"), _url_fixture("postgres")
postgres16, postgres16_url = _server_fixture("postgres16"), _url_fixture("postgres16")
valkey, valkey_url = _server_fixture("valkey"), _url_fixture("valkey")
valkey_cluster = _server_fixture("valkey_cluster")
valkey_cluster_url = _url_fixture("valkey_cluster")
valkey_sentinel = _server_fixture("valkey_sentinel")
valkey_sentinel_url = _url_fixture("valkey_sentinel")
redis7, redis7_url = _server_fixture("redis7"), _url_fixture("redis7")
mariadb, mariadb_url = _server_fixture("mariadb"), _url_fixture("mariadb")
mariadb11, mariadb11_url = _server_fixture("mariadb11"), _url_fixture("mariadb11")
etcd, etcd_url = _server_fixture("etcd"), _url_fixture("etcd")
etcd_cluster, etcd_cluster_url = _server_fixture("etcd_cluster"), _url_fixture("etcd_cluster")
nats, nats_url = _server_fixture("nats"), _url_fixture("nats")
rabbitmq, rabbitmq_url = _server_fixture("rabbitmq"), _url_fixture("rabbitmq")
ministack, ministack_url = _server_fixture("ministack"), _url_fixture("ministack")
dynamodb, dynamodb_url = _server_fixture("dynamodb"), _url_fixture("dynamodb")
dynamodb_local, dynamodb_local_url = (
    _server_fixture("dynamodb_local"),
    _url_fixture("dynamodb_local"),
)
mongodb, mongodb_url = _server_fixture("mongodb"), _url_fixture("mongodb")
s3, s3_url = _server_fixture("s3"), _url_fixture("s3")


@pytest.fixture(scope="session")
def kafka_broker() -> str:
    """Which Kafka it is; also in the id of every test that uses one: ``test_kafka[mock]``."""
    return broker()


@pytest.fixture(scope="session")
def kafka(kafka_broker: str) -> Any:
    return having(lambda: shared("kafka"), f"kafka ({kafka_broker})")


@pytest.fixture
def kafka_url(kafka: Any) -> Iterator[str]:
    with kafka.fresh() as fresh:
        yield fresh


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kafka_broker" in metafunc.fixturenames:
        metafunc.parametrize("kafka_broker", [broker()], scope="session")


@pytest.fixture
def own_server() -> Iterator[Callable[..., Any]]:
    """``own_server("valkey", appendonly="yes")``: a server for this test alone, to be mistreated."""
    started: list[Any] = []

    def start(engine: str, **settings: str) -> Any:
        server = having(lambda: launch(engine, **settings), engine)
        started.append(server)
        return server

    yield start
    for server in started:
        server.remove()
