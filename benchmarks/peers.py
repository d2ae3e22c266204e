"""The neighbours as contestants, each through its public names and with the settings it ships.

Where one cannot do a case, it is absent with the reason, which the report prints. A neighbour
that is not installed is absent too: the floors and ours run anywhere.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .workload import Absent, Contestant, nothing

EXACTLY_ONCE, IDEMKIT, DBOS = "exactly-once", "idemkit", "dbos"
POWERTOOLS, JUSTONCE = "powertools", "justonce"
ASGI_IDEMPOTENCY_HEADER = "asgi-idempotency-header"
FASTSTREAM_OUTBOX = "faststream-outbox"
MODULES = {
    EXACTLY_ONCE: "exactly_once",
    IDEMKIT: "idemkit",
    POWERTOOLS: "aws_lambda_powertools.utilities.idempotency",
    JUSTONCE: "justonce",
    DBOS: "dbos",
    ASGI_IDEMPOTENCY_HEADER: "idempotency_header_middleware",
}
# What an import needs, where that is more than the package of this name. The last one imports FastAPI and redis
# in any case; its extras pin old versions of them.
REQUIREMENTS: dict[str, tuple[str, ...]] = {
    POWERTOOLS: ("aws-lambda-powertools[aws-sdk]",),
    ASGI_IDEMPOTENCY_HEADER: (ASGI_IDEMPOTENCY_HEADER, "fastapi", "redis"),
}
PACKAGES = (
    EXACTLY_ONCE,
    IDEMKIT,
    "aws-lambda-powertools",
    JUSTONCE,
    DBOS,
    ASGI_IDEMPOTENCY_HEADER,
    FASTSTREAM_OUTBOX,
)


_left_out: dict[str, str] = {}


def leave_out(name: str, reason: str) -> None:
    _left_out[name] = reason


@contextmanager
def without(reasons: dict[str, str]) -> Iterator[None]:
    """Leave these out of the cases that are put together inside."""
    before = dict(_left_out)
    _left_out.update(reasons)
    try:
        yield
    finally:
        _left_out.clear()
        _left_out.update(before)


def lacks(name: str) -> str:
    """What of a neighbour is not installed here; nothing: it can be imported."""
    # powertools imports boto3 whatever store it is asked for.
    needed = (MODULES[name].partition(".")[0], *(("boto3",) if name == POWERTOOLS else ()))
    return ", ".join(each for each in needed if importlib.util.find_spec(each) is None)


def _missing(name: str) -> Absent | None:
    if name in _left_out:
        return Absent(name, _left_out[name])
    lacking = lacks(name)
    return Absent(name, f"not installed here ({lacking})") if lacking else None


def _guest(name: str, call: Callable[[str], Any], close: Callable[[], Any] = nothing) -> Contestant:
    return Contestant(name, call, close, guest=True)


def exactly_once(
    handler: Callable[[str], Any], path: Path | None = None, waits: bool = False, url: str = ""
) -> Contestant | Absent:
    """In memory, on SQLite (WAL, NORMAL: it has no other), Redis or PostgreSQL. No lease unless
    asked for; on PostgreSQL one connection, and SERIALIZABLE transactions."""
    if (missing := _missing(EXACTLY_ONCE)) is not None:
        return missing
    from exactly_once import Store, once, quarantine, wait

    if url.startswith("redis"):
        store = Store.redis(url)
    elif url:
        store = Store.postgres(url)
    else:
        store = Store.memory() if path is None else Store.sqlite(str(path))
    policy = wait() if waits else quarantine
    guarded = once(store, key=lambda key: key, policy=policy)(handler)
    if url and inspect.iscoroutinefunction(handler):

        async def close() -> None:
            await store.aclose()
            store.close()

        return _guest(EXACTLY_ONCE, guarded, close)
    return _guest(EXACTLY_ONCE, guarded, getattr(store, "close", nothing))


def idemkit(
    handler: Callable[[str], Any], *, is_async: bool, cache: bool = False, url: str = ""
) -> Contestant | Absent:
    """In memory, on Redis or PostgreSQL (asyncpg). Its blocking form runs the body on another
    thread, through an event loop, which keeps its connections until the process ends."""
    if (missing := _missing(IDEMKIT)) is not None:
        return missing
    import idemkit as kit

    backend: Any
    if url.startswith("redis"):
        backend = kit.RedisBackend.from_url(url)
    elif url:
        from idemkit.backends.postgres import init_pg

        asyncio.run(init_pg(url))
        backend = kit.PostgresBackend.from_url(url)
    else:
        backend = kit.InMemoryBackend()
    config = kit.MethodConfig(key_fields=["key"], use_local_cache=cache)
    decorate = kit.idempotent if is_async else kit.idempotent_sync
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it advises a scope; one tenant is what we measure
        guarded = decorate(backend=backend, config=config)(handler)
    if not url:
        return _guest(IDEMKIT, guarded)
    if is_async:
        return _guest(IDEMKIT, guarded, backend.aclose)
    from idemkit.core import sync_bridge

    def close() -> None:
        sync_bridge.run_sync(backend.aclose())
        sync_bridge._closables.remove(backend)  # else closed again, after the server

    return _guest(IDEMKIT, guarded, close)


def powertools(handler: Callable[[str], Any], url: str) -> Contestant | Absent:
    """On Redis, blocking only. It answers a duplicate that comes too early with an error."""
    if (missing := _missing(POWERTOOLS)) is not None:
        return missing
    import redis
    from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent_function
    from aws_lambda_powertools.utilities.idempotency.persistence.redis import (
        RedisCachePersistenceLayer,
    )

    client = redis.Redis.from_url(url, decode_responses=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layer = RedisCachePersistenceLayer(client=client)
    config = IdempotencyConfig(expires_after_seconds=86_400)
    guarded = idempotent_function(
        handler, data_keyword_argument="key", persistence_store=layer, config=config
    )

    def call(key: str) -> Any:
        return guarded(key=key)

    return _guest(POWERTOOLS, call, client.close)


def powertools_on_dynamodb(handler: Callable[[str], Any], url: str) -> Contestant | Absent:
    """On DynamoDB, which it is made for: its own items, and a client with the settings of the floor."""
    if (missing := _missing(POWERTOOLS)) is not None:
        return missing
    import boto3
    from aws_lambda_powertools.utilities.idempotency import (
        DynamoDBPersistenceLayer,
        IdempotencyConfig,
        idempotent_function,
    )
    from botocore.config import Config

    from .floors_dynamodb import TABLE, make_table, place_of

    make_table(url)
    config = Config(max_pool_connections=50, parameter_validation=False)
    client = boto3.session.Session().client("dynamodb", **place_of(url), config=config)
    layer = DynamoDBPersistenceLayer(table_name=TABLE, boto3_client=client)
    guarded = idempotent_function(
        handler,
        data_keyword_argument="key",
        persistence_store=layer,
        config=IdempotencyConfig(expires_after_seconds=86_400),
    )

    def call(key: str) -> Any:
        return guarded(key=key)

    return _guest(POWERTOOLS, call, client.close)


def justonce(handler: Callable[[str], Any], url: str, waits: bool = False) -> Contestant | Absent:
    """On PostgreSQL, with a new connection for every operation; awaited, in threads."""
    if (missing := _missing(JUSTONCE)) is not None:
        return missing
    from justonce import AsyncIdempotent, Idempotent, OnInFlight, async_idempotent, idempotent
    from justonce.stores.postgres import PostgresStore

    store = PostgresStore(url)
    meeting = OnInFlight.WAIT if waits else OnInFlight.RAISE
    if inspect.iscoroutinefunction(handler):
        engine = AsyncIdempotent(store, on_in_flight=meeting)
        return _guest(JUSTONCE, async_idempotent(key=lambda key: key, engine=engine)(handler))
    guarded = idempotent(key=lambda key: key, engine=Idempotent(store, on_in_flight=meeting))
    return _guest(JUSTONCE, guarded(handler))


# --- dbos: one runtime per process, so each case starts and ends it ------------------------------

_workflows: dict[Callable[..., Any], Any] = {}


def dbos(handler: Callable[[str], Any], folder: Path, url: str = "") -> Contestant | Absent:
    """A workflow without steps, on SQLite (rollback journal, FULL: what it ships) or PostgreSQL."""
    if (missing := _missing(DBOS)) is not None:
        return missing
    from dbos import DBOS as Runtime  # noqa: N811 - its own name is our column's
    from dbos import SetWorkflowID

    url = url or f"sqlite:///{folder.absolute()}/dbos.sqlite"
    Runtime(config={"name": "bench", "system_database_url": url, "log_level": "CRITICAL"})
    if handler not in _workflows:
        _workflows[handler] = Runtime.workflow(name=f"bench.{handler.__name__}")(handler)
    workflow = _workflows[handler]
    Runtime.launch()

    def call(key: str) -> Any:
        with SetWorkflowID(key):
            return workflow(key)

    async def acall(key: str) -> Any:
        with SetWorkflowID(key):
            return await workflow(key)

    is_async = inspect.iscoroutinefunction(handler)
    return _guest(DBOS, acall if is_async else call, Runtime.destroy)
