"""What a million keys weigh in a server, and what sweeping them costs.

``python -m benchmarks.size_servers postgresql 1000000 URL`` prints one line of JSON. Records are made
through the store's own batch form, 200 at a time, so that claims and completions follow each other as
in a busy service. Nothing is vacuumed by hand: what autovacuum leaves is what an operator has.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

from .size import fill, timed

CHUNK = 200
AIMS: dict[str, tuple[float | None, float | None]] = {
    "postgresql": (460, 3e-6),
    "valkey": (380, None),
    "mariadb": (None, None),
    "etcd": (None, None),
}
"""Bytes per key and seconds per swept key that are aimed at."""

QUICKLY = "&options=-csynchronous_commit%3Doff%20-cenable_seqscan%3Doff"
"""Only for filling: a table that grows from nothing in a minute is no service."""


def postgresql(count: int, url: str) -> dict[str, float]:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS size_keys, size_meta, size_audit")
    url += "?table=size"
    due = count // 20
    _filled(url + QUICKLY, count, due)
    with psycopg.connect(url.partition("?")[0], autocommit=True) as connection:
        row = connection.execute("SELECT pg_total_relation_size('size_keys')").fetchone()
    assert row is not None
    return {"bytes_per_key": row[0] / count, **_swept(url, due)}


def mariadb(count: int, url: str) -> dict[str, float]:
    import pymysql

    due = count // 20
    _filled(url + "?table=size", count, due)
    port, database = int(url.rpartition(":")[2].split("/")[0]), url.rsplit("/", maxsplit=1)[-1]
    with pymysql.connect(host="127.0.0.1", port=port, user="root") as connection:
        cursor = connection.cursor()
        cursor.execute(
            "SELECT file_size FROM information_schema.innodb_sys_tablespaces WHERE name = %s",
            (f"{database}/size_keys",),
        )
        (size,) = cursor.fetchone()
    return {"bytes_per_key": size / count, **_swept(url + "?table=size", due)}


def valkey(count: int, url: str) -> dict[str, float]:
    import redis

    with redis.Redis.from_url(url) as client:
        before: Any = client.info("memory")
        _filled(url + "?prefix=size", count, 0)
        after: Any = client.info("memory")
    return {"bytes_per_key": (after["used_memory"] - before["used_memory"]) / count}


def etcd(count: int, url: str) -> dict[str, float]:
    """Of fewer keys: each is two synced transactions. Compacted and defragmented, as an operator does."""
    from tests.stores.etcd_clients import RawEtcd, etcdctl

    count = min(count, 20_000)
    port = int(url.rpartition(":")[2].partition("/")[0])

    def size() -> int:
        revision = raw("Range", key=b"\0").header.revision
        etcdctl(port, "compact", "--physical", str(revision))
        etcdctl(port, "defrag")
        return int(raw("Status").dbSize)

    raw = RawEtcd(port)
    raw.put(b"size", b"")
    before = size()
    _filled(f"{url}/size", count, 0)
    grown = size() - before
    raw.close()
    return {"bytes_per_key": grown / count}


def _filled(url: str, count: int, due: int) -> None:
    from twicesafe.stores._urls import open_store

    store = open_store(url)
    fill(store, count, due, CHUNK)
    store.close()


def _swept(url: str, due: int) -> dict[str, float]:
    from twicesafe import Receiver

    with Receiver.open(url) as receiver:
        took = timed(lambda: receiver.sweep(limit=due).removed, due)
    return {"sweep_seconds": took.wall, "sweep_processor_seconds": took.processor}


SERVERS = {"postgresql": postgresql, "valkey": valkey, "mariadb": mariadb, "etcd": etcd}


def measured(name: str, count: int, url: str) -> dict[str, float]:
    """In a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.size_servers", name, str(count), url],
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.size_servers")
    parser.add_argument("what", choices=SERVERS)
    parser.add_argument("count", type=int)
    parser.add_argument("url")
    asked = parser.parse_args()
    print(json.dumps(SERVERS[asked.what](asked.count, asked.url)))
