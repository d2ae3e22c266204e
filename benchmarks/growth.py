"""What a call costs when the store holds millions of keys, against the same store with few.

The same code runs on two tables of one server, in turns: the floor is our own call on the small table, so the
ratio is what growth costs. The big table is filled by the server itself, with copies of one completed
record under other identities. Duplicates ask for 2,000 keys whose identities are spread over the whole index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from . import engines, ours
from .case import FLOOR, Case, Target
from .workload import Contestant, handler

SIZES, HUGE = (1_000_000, 10_000_000), (100_000_000,)
SECTION = "Table growth: our call with many keys in the store, against few"
SPREAD_OUT = 2_000
LIMIT = Target(1.3)
"""A call may cost so much more on the big table."""
CHUNK, SCRIPT = 100_000, 2_000
"""Rows of one statement, and keys of one script, which lets nothing else run."""

COPY = """
INSERT INTO {table} ({columns}) SELECT {values} FROM {table},
    generate_series(%s::bigint, %s::bigint) n WHERE id = %s"""
POPULATE = """
for n = ARGV[1], ARGV[2] do
  redis.call('RESTORE', KEYS[1] .. string.sub(redis.sha1hex(n), 1, 16) .. ARGV[3], ARGV[5], ARGV[4],
    'REPLACE')
end
"""


def growth(sizes: tuple[int, ...] = SIZES) -> Iterator[Case]:
    for engine, (small, big, fill) in TABLES.items():
        for size in sizes:
            for what in ("first", "duplicate"):
                yield Case(
                    f"growth/{engine}/{size}/{what}",
                    SECTION,
                    f"{engines.ENGINES[engine].shown}, {what}, {size:,} keys",
                    partial(_on_small, engine, small),
                    partial(_on_big, engine, big, fill, size),
                    fresh=what == "first",
                    settled=SPREAD_OUT,
                    target=LIMIT,
                    lap=0.03,
                    quick=False,
                    engine=engine,
                )


def _on_small(engine: str, place: Callable[[str], str], folder: Path) -> Contestant:
    return ours.blocking(place(engines.url(engine)), handler, name=FLOOR)


def _on_big(
    engine: str,
    place: Callable[[str], str],
    fill: Callable[[str, int], None],
    size: int,
    folder: Path,
) -> Contestant:
    url = place(engines.url(engine))
    contestant = ours.blocking(url, handler)
    contestant.call("template")  # makes the table, and the record that is copied
    fill(url, size)
    return contestant


def fill_postgresql(url: str, size: int) -> None:
    """Up to so many rows, all columns but the identity copied from a row that the library wrote."""
    import psycopg

    table = "growth_keys"
    with psycopg.connect(url.partition("?")[0], autocommit=True) as connection:
        connection.execute("SET synchronous_commit = off")
        template, have = connection.execute(
            f"SELECT id, (SELECT count(*) FROM {table}) FROM {table} LIMIT 1"
        ).fetchone()  # type: ignore[misc]
        columns = [
            name
            for (name,) in connection.execute(
                "SELECT column_name FROM information_schema.columns WHERE table_name = %s"
                " AND is_generated = 'NEVER' AND is_identity = 'NO'",
                (table,),
            )
        ]
        values = [
            "encode(substring(sha256(int8send(n)) FOR 16), 'hex')::uuid" if name == "id" else name
            for name in columns
        ]
        copy = COPY.format(table=table, columns=", ".join(columns), values=", ".join(values))
        for start in range(have, size, CHUNK):
            connection.execute(copy, (start, min(start + CHUNK, size) - 1, template))
        connection.execute(f"VACUUM ANALYZE {table}")
        connection.execute("CHECKPOINT")


def fill_valkey(url: str, size: int) -> None:
    import redis

    # A server that waits for its disk answers late; a copy that is made twice is the same copy.
    with redis.Redis.from_url(url, socket_timeout=None) as client:
        have: int = client.dbsize()
        name: bytes = next(one for one in client.scan_iter(count=10) if b"{" in one)
        record, left = client.dump(name), client.pttl(name)
        # Another 16 bytes within the identity, which stands in braces, make another key.
        at = name.index(b"{") + 1
        for start in range(have, size, SCRIPT):
            last = min(start + SCRIPT, size) - 1
            words: list[Any] = [name[:at], start, last, name[at + 16 :], record, left]
            client.eval(POPULATE, 1, *words)


def _database(number: int, url: str) -> str:
    return f"{url.rpartition('/')[0]}/{number}"


TABLES: dict[str, tuple[Callable[[str], str], Callable[[str], str], Callable[[str, int], None]]] = {
    "postgresql": (
        lambda url: f"{url}?table=few",
        lambda url: f"{url}?table=growth",
        fill_postgresql,
    ),
    "valkey": (partial(_database, 1), partial(_database, 2), fill_valkey),
}
"""Per engine: where the small table is, where the big one is, and how it is filled."""
