"""Real servers for the tests, started by the test run itself.

    shared("valkey")              the one of this run: started on first use, stopped at the end
    launch("valkey", appendonly="yes")   one of your own, to restart and to kill; use it with `with`

In tests use the fixtures of `tests.servers.fixtures` (known to every test): ``postgres_url`` and its
like give a database or a prefix of the test's own on the shared server; ``postgres`` and its like
give the `Server`. By hand: ``python -m tests.servers postgres`` prints a URL and waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.servers.dynamodb_local import DynamodbLocal
from tests.servers.etcd import Etcd, EtcdCluster
from tests.servers.ferretdb import FerretDB
from tests.servers.kafka import kafka
from tests.servers.mariadb import MariaDB, MariaDB11
from tests.servers.ministack import S3, Dynamodb, Ministack
from tests.servers.mirrormaker import MirrorMaker
from tests.servers.nats import Nats
from tests.servers.postgres import Postgres
from tests.servers.process import NoServerError, PortTakenError, Server, at_end, free_port
from tests.servers.rabbitmq import RabbitMQ
from tests.servers.valkey import Redis7, Valkey, ValkeyCluster, ValkeySentinel

__all__ = ["ENGINES", "NoServerError", "Server", "free_port", "launch", "shared"]

ENGINES: dict[str, Callable[..., Any]] = {
    "postgres": lambda **settings: Postgres(18, **settings),
    "postgres16": lambda **settings: Postgres(16, **settings),
    "valkey": Valkey,
    "valkey_cluster": ValkeyCluster,
    "valkey_sentinel": ValkeySentinel,
    "redis7": Redis7,
    "mariadb": MariaDB,
    "mariadb11": MariaDB11,
    "etcd": Etcd,
    "etcd_cluster": EtcdCluster,
    "nats": Nats,
    "rabbitmq": RabbitMQ,
    "kafka": kafka,
    "mirrormaker": MirrorMaker,
    "ministack": Ministack,
    "dynamodb": Dynamodb,
    "dynamodb_local": DynamodbLocal,
    "mongodb": FerretDB,
    "s3": S3,
}

PORT_TRIES = 3

_shared: dict[str, Any] = {}


def launch(engine: str, **settings: str) -> Any:
    """Your own server, running. Raises `NoServerError` where there is none."""
    for left in reversed(range(PORT_TRIES)):
        server = ENGINES[engine](**settings)
        server.prepare()
        at_end(server.remove)
        try:
            server.start()
        except PortTakenError:
            if not left:
                raise
        else:
            break
    return server


def shared(engine: str) -> Any:
    """The server that all tests of this process use; started again if a test left it down."""
    found = _shared.get(engine)
    if isinstance(found, NoServerError):
        raise found
    if found is None:
        try:
            found = launch(engine)
        except NoServerError as reason:
            _shared[engine] = reason
            raise
        _shared[engine] = found
    elif not found.running:
        found.stop()
        found.start()
    return found
