"""Opening a MongoDB store: its URL, its index, its doctor, and errors that say what is missing."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import Any

import pytest

from tests.servers import free_port
from tests.stores.mongodb_sockets import sockets_of_the_driver  # noqa: F401 - an autouse fixture
from twicesafe import AsyncReceiver, ConfigurationError, Receiver, StoreUnavailableError
from twicesafe._core.driving import drive
from twicesafe._core.protocol import Survey
from twicesafe._engines.mongodb import AsyncMongodbStore, MongodbStore
from twicesafe._engines.mongodb.collection import examine, migrate
from twicesafe._engines.mongodb.documents import DriverCall
from twicesafe._engines.mongodb.error_messages import explain
from twicesafe._engines.mongodb.settings import Settings
from twicesafe.errors import StoreError

HOST = "mongodb://127.0.0.1:1/db"


def open_and_use(kind: str, url: str) -> None:
    if kind == "blocking":
        MongodbStore.open(url).close()
        return

    async def use() -> None:
        store = AsyncMongodbStore.open(url)
        try:
            await store.perform(Survey())
        finally:
            await store.close()

    asyncio.run(use())


@pytest.mark.parametrize(
    "url, problem",
    [
        ("mongodb://", "names no database"),
        ("mongodb://127.0.0.1:1", "mongodb://host:27017/database"),
        ("mongodb://ann:secret@127.0.0.1:1/", "names no database"),
        ("mongodb://ann:sec@ret@127.0.0.1:1/db", "percent-encode @"),
        (f"{HOST}?w=1", "waits for a majority"),
        (f"{HOST}?w=0", "waits for a majority"),
        (f"{HOST}?W=2", "waits for a majority"),
        (f"{HOST}?journal=false", "waits for the journal"),
        (f"{HOST}?readPreference=secondary", "may not know of a claim yet"),
        (f"{HOST}?readConcernLevel=local", "remove it from the URL"),
        (f"{HOST}?timeoutMS=5", "use timeout="),
        (f"{HOST}?datetime_conversion=DATETIME_MS", "twicesafe reads times itself"),
        (f"{HOST}?datetime_conversion=datetime_ms", "twicesafe reads times itself"),
        ("mongodb://ann:secret@127.0.0.1:1/admin", "the server's own database"),
        ("mongodb://127.0.0.1:1/local", "the server's own database"),
        ("mongodb://127.0.0.1:1/config", "the server's own database"),
        (f"{HOST}?maxPoolSize=5", "use pool="),
        (f"{HOST}?tls=perhaps", "use one of true, false"),
        (f"{HOST}?no_such_option=1", "refuses a setting"),
        (f"{HOST}?tls=true&tlsCAFile=/no/such/file", "/no/such/file"),
        (f"{HOST}?collection=a%20b", "starting with a letter"),
        (f"{HOST}?collection=system.users", "starting with a letter"),
        (f"{HOST}?pool=0", "1 or more"),
        (f"{HOST}?timeout=0", "above 0"),
        (f"{HOST}?skew=2h", "0 to 3600"),
    ],
)
def test_a_wrong_url_is_refused(url: str, problem: str):
    for receiver in (Receiver, AsyncReceiver):
        with pytest.raises(ConfigurationError) as caught:
            receiver.open(url)
        assert problem in str(caught.value)
        assert "secret" not in str(caught.value)


def test_the_options():
    settings = Settings.of(
        "mongodb://ann:s%40ve@h1:27017,h2:27018/shop?w=majority&replicaSet=rs0&collection=keys.a"
        "&authMechanismProperties=SERVICE_NAME:x&skew=2s"
    )
    assert (settings.database, settings.collection, settings.skew) == ("shop", "keys.a", 2.0)
    assert settings.url == "mongodb://ann:***@h1:27017,h2:27018/shop"
    assert settings.dsn == (
        "mongodb://ann:s%40ve@h1:27017,h2:27018/shop?w=majority&replicaSet=rs0"
        "&authMechanismProperties=SERVICE_NAME:x"
    )


def test_a_name_in_the_dns_is_a_scheme_too():
    assert Settings.of("mongodb+srv://cluster.example.net/db").dsn.startswith("mongodb+srv://")


@pytest.mark.usefixtures("mongodb")
@pytest.mark.parametrize("kind", ["blocking", "async"])
def test_no_server(kind: str):
    url = f"mongodb://ann:secret@127.0.0.1:{free_port()}/db?timeout=1"
    with pytest.raises(StoreUnavailableError, match="did not answer") as caught:
        open_and_use(kind, url)
    assert caught.value.retryable
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("kind", ["blocking", "async"])
def test_opening_works_without_a_ttl_index_and_without_migration(kind: str, mongodb_url: str):
    open_and_use(kind, mongodb_url)
    open_and_use(kind, f"{mongodb_url}&migrate=false")


def test_many_may_open_at_once(mongodb_url: str):
    async def all_at_once() -> None:
        stores = [AsyncMongodbStore.open(mongodb_url) for _ in range(5)]
        await asyncio.gather(*(store.ready() for store in stores))
        await asyncio.gather(*(store.close() for store in stores))

    asyncio.run(all_at_once())


def test_the_doctor_of_the_server_of_these_tests(mongodb_url: str):
    with closing(MongodbStore.open(mongodb_url)) as store:
        assert store.migrated == [
            "no time to live: mongodb://127.0.0.1:{}/twicesafe refuses a value (OperationFailure 238): "
            'Index option "expireAfterSeconds" is not implemented yet'.format(
                Settings.of(mongodb_url).dsn.split(":")[2].partition("/")[0]
            )
        ]
        found = {finding.what: finding.level for finding in store.doctor()}
    assert list(found.values()) == ["refuse", "warn", "warn"]
    assert "two workers can win a claim" in next(iter(found))


# --- what servers would say that are not here --------------------------------------------------

TTL = [{"key": {"_id": 1}}, {"key": {"ttl": 1}, "expireAfterSeconds": 0}]


def doctor(hello: dict[str, Any], build: dict[str, Any], indexes: list[Any]) -> list[str]:
    replies = {"hello": hello, "buildInfo": build}

    def reply(call: DriverCall) -> Any:
        return indexes if call.operation == "list_indexes" else replies[call.arguments[0]]

    return [finding.level for finding in drive(examine(Settings.of(HOST)), reply)]


def members(*names: str, **more: Any) -> dict[str, Any]:
    return {"setName": "rs0", "hosts": list(names), **more}


@pytest.mark.parametrize(
    "hello, build, indexes, levels",
    [
        (members("a", "b", "c"), {"version": "7.0.2"}, TTL, ["ok", "ok", "ok"]),
        ({"msg": "isdbgrid"}, {"version": "8.0.1"}, TTL, ["ok", "ok", "ok"]),
        (members("a", "b", arbiters=["c"]), {"version": "7.0.2"}, TTL, ["ok", "warn", "ok"]),
        (members("a", passives=["b"]), {"version": "7.0.2"}, TTL, ["ok", "warn", "ok"]),
        ({}, {"version": "4.2.1"}, TTL[:1], ["refuse", "warn", "warn"]),
        ({}, {"version": "7", "ferretdbVersion": "v2.1"}, [{"key": {"ttl": 1}}], ["warn"] * 3),
    ],
)
def test_the_doctor(hello: dict[str, Any], build: dict[str, Any], indexes: Any, levels: list[str]):
    assert doctor(hello, build, indexes) == levels


def test_the_index_is_made_once():
    made: list[DriverCall] = []

    def server(call: DriverCall) -> Any:
        if call.operation == "list_indexes":
            return TTL if made else TTL[:1]
        made.append(call)
        return "ttl"

    settings = Settings.of(HOST)
    assert drive(migrate(settings), server) == [
        "created the index ttl of twicesafe: MongoDB deletes expired records"
    ]
    assert drive(migrate(settings), server) == []
    [call] = made
    assert call[:3] == ("create_index", ("ttl",), {"name": "ttl", "expireAfterSeconds": 0})


@pytest.mark.parametrize(
    "code, kind, words",
    [
        (18, ConfigurationError, "refuses the user or password"),
        (13, ConfigurationError, "lacks a permission"),
        (10334, StoreError, "16 MB"),
        (121, StoreError, "refuses a value"),
        (61, ConfigurationError, "sharded, then by _id"),  # ShardKeyNotFound
        (166, ConfigurationError, "not a view"),  # CommandNotSupportedOnView
        (10107, StoreUnavailableError, "did not answer"),  # NotWritablePrimary
        (50, StoreUnavailableError, "did not answer"),  # MaxTimeMSExpired
    ],
)
def test_what_an_error_of_the_server_means(code: int, kind: type[Exception], words: str):
    from pymongo.errors import OperationFailure

    ours = explain(OperationFailure("text, full error: {'secret'}", code), "mongodb://host/db")
    assert type(ours) is kind
    assert words in str(ours)
    assert "secret" not in str(ours)
