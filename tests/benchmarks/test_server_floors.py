"""The floors on real servers keep the protocol: a floor that cheats would make us look slow."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks import floors
from benchmarks.floors_dynamodb import TABLE, AsyncDynamodbFloor, DynamodbFloor
from benchmarks.floors_etcd import AsyncEtcdFloor, EtcdFloor
from benchmarks.floors_mariadb import AsyncmyFloor, PyMySqlFloor
from benchmarks.floors_mongodb import AsyncMongodbFloor, MongodbFloor
from benchmarks.floors_postgresql import AsyncpgFloor, AsyncPsycopgFloor, PsycopgFloor
from benchmarks.floors_redis import AsyncRedisFloor, RedisFloor
from benchmarks.measure import measure
from benchmarks.workload import Contestant, Offer, handler


def keeps_the_protocol(floor: Any, name: str, expire: Callable[[str], None]) -> None:
    """Claimed once, completed only by its owner at its fence, replayed, and taken over in the end."""
    with asyncio.Runner() as runner:

        def ask(method: str, *args: Any) -> Any:
            answer = getattr(floor, method)(*args)
            return runner.run(_plain(answer)) if inspect.isawaitable(answer) else answer

        owner, fence, payload = ask("claim", name)
        assert payload is None
        with pytest.raises(floors.BusyError):
            ask("claim", name)
        with pytest.raises(floors.LostError):
            ask("complete", name, owner, fence + 1, b"stale")
        ask("complete", name, owner, fence, b"first")
        assert ask("claim", name)[2] == b"first"
        expire(name)
        _, later, payload = ask("claim", name)
        assert payload is None
        assert later > fence
        with pytest.raises(floors.LostError):
            ask("complete", name, owner, fence, b"late")
        if hasattr(floor, "batch"):
            keys = [f"{name}-{number}" for number in range(5)]
            ask("batch", keys, [b"%d" % number for number in range(5)])
            assert [ask("claim", key)[2] for key in keys] == [b"0", b"1", b"2", b"3", b"4"]
        ask("close")


async def _plain(awaitable: Any) -> Any:
    return await awaitable


@pytest.mark.parametrize("kind", [PsycopgFloor, AsyncPsycopgFloor, AsyncpgFloor])
def test_on_postgresql(postgres_url: str, kind: Any):
    import psycopg

    def expire(key: str) -> None:
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute("UPDATE floor SET until = 1 WHERE key = %s", (key,))

    keeps_the_protocol(kind(postgres_url), "k", expire)


@pytest.mark.parametrize("kind", [RedisFloor, AsyncRedisFloor])
def test_on_valkey(valkey: Any, kind: Any):
    def expire(key: str) -> None:
        import struct

        with valkey.client() as client:
            text = client.get(f"floor:{key}")
            ended = text[:7] + struct.pack("<Q", 1)[:6] + text[13:]
            client.set(f"floor:{key}", ended)

    keeps_the_protocol(kind(valkey.url), f"k-{kind.__name__}", expire)


@pytest.mark.parametrize("kind", [DynamodbFloor, AsyncDynamodbFloor])
def test_on_dynamodb(dynamodb: Any, kind: Any):
    def expire(key: str) -> None:
        dynamodb.client().update_item(
            TableName=TABLE,
            Key={"id": {"S": key}},
            UpdateExpression="SET #until = :past",
            ExpressionAttributeNames={"#until": "until"},
            ExpressionAttributeValues={":past": {"N": "1"}},
        )

    keeps_the_protocol(kind(dynamodb.url), f"k-{kind.__name__}", expire)


@pytest.mark.parametrize("kind", [MongodbFloor, AsyncMongodbFloor])
def test_on_mongodb(mongodb: Any, kind: Any):
    def expire(key: str) -> None:
        mongodb.client()["twicesafe"]["floor"].update_one({"_id": key}, {"$set": {"until": 1}})

    keeps_the_protocol(kind(mongodb.url), f"k-{kind.__name__}", expire)


@pytest.mark.parametrize("kind", [PyMySqlFloor, AsyncmyFloor])
def test_on_mariadb(mariadb: Any, mariadb_url: str, kind: Any):
    def expire(key: str) -> None:
        database = mariadb_url.rpartition("/")[2]
        mariadb.execute(f"UPDATE {database}.floor SET til = 1 WHERE id = '{key}'")

    keeps_the_protocol(kind(mariadb_url), "k", expire)


@pytest.mark.parametrize("kind", [EtcdFloor, AsyncEtcdFloor])
def test_on_etcd(etcd: Any, kind: Any):
    import contextlib

    from tests.stores.etcd_clients import RawEtcd

    name = f"k-{kind.__name__}"

    def expire(key: str) -> None:
        with contextlib.closing(RawEtcd(etcd.port)) as raw:
            raw("DeleteRange", key=f"floor/r/{key}".encode())

    keeps_the_protocol(kind(etcd.url), name, expire)


def test_a_neighbour_that_fails_is_reported_and_the_others_go_on():
    def fails(key: str) -> None:
        raise ZeroDivisionError

    offer = Offer("blocking")
    entrants = [Contestant("floor", handler), Contestant("guest", fails, guest=True)]
    floor, guest = measure(entrants, offer, fresh=True, rounds=3, lap=0.0001)
    assert floor.laps == 3
    assert guest.absent == "failed here (ZeroDivisionError)"
    with pytest.raises(ZeroDivisionError):
        measure(
            [Contestant("floor", handler), Contestant("ours", fails)], offer, fresh=True, rounds=3
        )
