"""A separate place for the benchmark: another table, prefix or file in the same store.

Its name is random for each run, so it never collides with your records or another run. Everything in
it is removed when the run ends, even after an error. After a kill -9, drop what has ``_bench_`` in its
name.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode

from .._engines.sql.commands import Change, Query
from ..stores._base import Program
from ..stores._urls import open_store

__all__ = ["own_place"]

_TABLES = {
    "postgresql": "SELECT format('%I.%I', schemaname, tablename) FROM pg_catalog.pg_tables"
    " WHERE starts_with(tablename, '{name}_')",
    "mysql": "SELECT CONCAT('`', table_schema, '`.`', table_name, '`') FROM information_schema.tables"
    " WHERE table_schema = DATABASE() AND LEFT(table_name, CHAR_LENGTH('{name}_')) = '{name}_'",
}
_ENGINES = {
    "postgres": "postgresql",
    "mariadb": "mysql",
    "etcds": "etcd",
    "rediss": "redis",
    "valkey": "redis",
    "valkeys": "redis",
}


@contextmanager
def own_place(url: str) -> Iterator[str]:
    """The URL of a new place. Its first use creates it; the end of the block removes it."""
    scheme = url.partition(":")[0].partition("+")[0]
    engine = _ENGINES.get(scheme, scheme)
    token = secrets.token_hex(4)
    if engine == "sqlite":
        yield from _file(url, token)
    elif engine == "redis":
        name, own = _renamed(url, "prefix", "ts", token)
        try:
            yield own
        finally:
            _unlink(own, name)
    elif engine == "dynamodb":
        head, mark, query = url.partition("?")
        own = f"{head}_bench_{token}{mark}{query}"
        try:
            yield own
        finally:
            _delete_table(own)
    elif engine == "mongodb":
        _, own = _renamed(url, "collection", "twicesafe", token)
        try:
            yield own
        finally:
            _drop_collection(own)
    elif engine == "etcd":
        name, own = _under_prefix(url, token)
        try:
            yield own
        finally:
            _delete_range(own, name)
    elif engine in _TABLES:
        name, own = _renamed(url, "table", "twicesafe", token)
        try:
            yield own
        finally:
            _drop(own, _TABLES[engine].format(name=name))
    else:
        yield url  # memory is private to this process; of a plug-in's store we know only the URL


def _renamed(url: str, option: str, default: str, token: str) -> tuple[str, str]:
    head, _, query = url.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    name = f"{options.get(option, default)[:24]}_bench_{token}"
    return name, f"{head}?{urlencode(options | {option: name})}"


def _under_prefix(url: str, token: str) -> tuple[str, str]:
    head, mark, query = url.partition("?")
    scheme, _, rest = head.partition("://")
    place, _, prefix = rest.partition("/")
    name = f"{prefix.strip('/') or 'twicesafe'}/_bench_{token}"
    return name, f"{scheme}://{place}/{name}{mark}{query}"


def _file(url: str, token: str) -> Iterator[str]:
    """Another file next to the one in the URL, so on the same disk."""
    head, mark, query = url.partition("?")
    own = f"{head}_bench_{token}"
    try:
        yield f"{own}{mark}{query}"
    finally:
        path = Path(unquote(own.removeprefix("sqlite:///")))
        for each in path.parent.glob(f"{path.name}*"):
            each.unlink(missing_ok=True)


# --- removing, by the engine's own means --------------------------------------------------------


def _drop(url: str, listing: str) -> None:
    store: Any = open_store(url)
    try:
        if hasattr(store.programs, "returning"):  # MySQL builds a new program for each retry
            store._run(lambda: _drop_all(listing))
        else:
            store._run(_drop_all(listing))
    finally:
        store.close()


def _drop_all(listing: str) -> Program[None]:
    names = [row[0] for row in (yield Query(listing))]
    if names:
        yield Change(f"DROP TABLE IF EXISTS {', '.join(names)} CASCADE")


def _unlink(url: str, name: str) -> None:
    from .._engines.redis.routed_commands import PlainCommand

    store: Any = open_store(url)
    try:
        node = 0
        while True:
            cursor: Any = b"0"
            while True:
                scan = (b"SCAN", cursor, b"MATCH", f"{name}:*".encode(), b"COUNT", 1000)
                (reply,) = store._execute([PlainCommand(scan, node=node)])
                if reply is None:
                    return  # no more primaries
                if isinstance(reply, Exception):
                    raise reply
                cursor, keys = reply
                if keys:
                    store._execute([PlainCommand((b"UNLINK", key), key=key) for key in keys])
                if cursor == b"0":
                    break
            node += 1
    finally:
        store.close()


def _delete_table(url: str) -> None:
    from .._engines.dynamodb.items import BotoCall

    store: Any = open_store(url)
    try:
        store._execute(BotoCall("delete_table", {}))
    finally:
        store.close()


def _drop_collection(url: str) -> None:
    from .._engines.mongodb.documents import DriverCall

    store: Any = open_store(url)
    try:
        store._execute(DriverCall("drop"))
    finally:
        store.close()


def _delete_range(url: str, name: str) -> None:
    from .._engines.etcd.messages import message
    from .._engines.etcd.routing import EtcdCall

    def remove() -> Program[None]:
        ends = {"key": f"{name}/".encode(), "range_end": f"{name}0".encode()}
        yield EtcdCall("DeleteRange", message("DeleteRangeRequest")(**ends))

    store: Any = open_store(url)
    try:
        store._run(remove())
    finally:
        store.close()
