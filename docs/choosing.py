"""The page that helps to choose a store: guarantees from the code, calls and units as counted, times as published.

No figure of it is typed: `benchmarks/results/calls.json` has the counts, `published.json` the times.
"""  # noqa: INP001 - beside the script that uses it

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from twicesafe.stores._base import Capabilities

__all__ = ["page"]

RESULTS: Final = Path(__file__).parent.parent / "benchmarks" / "results"

QUESTIONS: Final = {
    "durable": "records survive the end of the process",
    "shared": "several processes can use it",
    "transactions": "the record commits in your own transaction (inbox)",
    "outbox": "messages commit in your own transaction (outbox)",
    "steps": "durable functions",
    "server_clock": "its own clock decides about leases",
    "batch": "a batch is one round trip",
    "wake": "waiters are notified, and need not poll",
    "native_expiry": "expired records disappear without a sweep",
    "copies": "a region can take over with it (copies)",
    "single_writer": "one writer at a time",
}
"""Every capability, as a reader asks for it."""

MEASURED: Final = {
    "sqlite": ("SQLite", "sqlite-full/blocking"),
    "postgresql": ("PostgreSQL", "postgresql/psycopg"),
    "mariadb": ("MariaDB", "mariadb/blocking"),
    "valkey": ("Valkey", "valkey/blocking"),
    "etcd": ("etcd", "etcd/blocking"),
    "dynamodb": ("DynamoDB", "dynamodb/blocking"),
    "mongodb": ("MongoDB", "mongodb/blocking"),
}
"""By the names of the results: how a store is called here, and its rows of one blocking caller."""

Table = Callable[..., str]


def page(stores: Mapping[str, Any], table: Table) -> str:
    """`stores`: the class of each by its title."""
    assert set(QUESTIONS) == set(Capabilities.__dataclass_fields__), "a capability has no question"
    guarantees = [
        (question, *(_declared(store, name) for store in stores.values()))
        for name, question in QUESTIONS.items()
    ]
    untried = [
        (title, f"{what}: {why}") for title, s in stores.items() for what, why in s.untried.items()
    ]
    counts: dict[str, Any] = json.loads((RESULTS / "calls.json").read_text("utf-8"))
    published = json.loads((RESULTS / "published.json").read_text("utf-8"))
    rows = {row["id"]: row for row in published["rows"]}
    return f"""# Choose a store

| you have | use |
|---|---|
| one machine | [SQLite](sqlite.md), the default |
| a PostgreSQL or MariaDB where your data is | [PostgreSQL](postgresql.md), [MariaDB or MySQL](mariadb.md): record and data commit together |
| a Redis, and effects outside your database | [Redis or Valkey](redis.md); read what a failover can lose |
| AWS, and no server to run | [DynamoDB](dynamodb.md) |
| a three-node etcd, few keys per second, and clocks that you do not trust | [etcd](etcd.md) |
| a MongoDB replica set | [MongoDB](mongodb.md) |
| tests | `memory://` |

All of them follow the same protocol, and one conformance suite tests them all. This page shows what differs.

## Guarantees

Each store declares these in its code, and the suite tests what it declares.

{table("", *stores, rows=guarantees)}
*Untried* means that the code exists, but none of our test servers supports it.

{table("store", "untried", rows=untried)}
## What a million deliveries cost

We counted round trips between the library and a server, for one blocking caller with warm connections. The handlers are short, so no lease
is renewed, and results have 200 bytes. Multiply by your provider's price for a write unit (DynamoDB), a request or a stored gigabyte. A
server of your own has no price per call. Retries, takeovers and waiting duplicates need more; each store's page says how much.

{table("store", "round trips, first deliveries", "round trips, repeats", "write units, first", "write units, repeats", "stored, a million keys", rows=_costs(counts, rows))}
The sizes are those of the published benchmark, with indexes. For DynamoDB it is the size of an item by AWS's rule, which also gives the write
units. For MongoDB it is the documents alone, before compression and without indexes. SQLite has no server, so it has no round trips.
`python -m benchmarks.calls --publish` counts again.

## Latency

The times are for one blocking caller, from the [published benchmark](../explanation/performance.md). Client and server were on one machine, so
add the time of your network for each round trip. The second figure is the ratio to minimal hand-written code.

{table("store", "first delivery", "repeat", rows=[_times(*each, rows) for each in MEASURED.values()])}
DynamoDB and MongoDB are measured on emulators. Their figures show what the library adds, not how fast the service is.

## What it cannot tell

The table compares stores, not your network, disk or provider. Run `twicesafe bench --store URL` against your own server before you decide, and
[`twicesafe plan`](plan.md) for its size.
"""


def _declared(store: Any, capability: str) -> str:
    if not getattr(store.capabilities, capability):
        return "–"
    return "yes, *untried*" if capability in store.untried else "yes"


def _costs(counts: dict[str, Any], rows: dict[str, Any]) -> list[tuple[str, ...]]:
    found = []
    for name, (title, _) in MEASURED.items():
        counted = counts.get(name, {})
        size = counted.get("bytes") or rows.get(f"size/{name}", {}).get("raw", {}).get(
            "bytes_per_key"
        )
        found.append(
            (
                title,
                *(
                    "–" if what not in counted else f"{counted[what]:g} million"
                    for what in (
                        "first round trips",
                        "repeat round trips",
                        "first write units",
                        "repeat write units",
                    )
                ),
                "not published" if size is None else f"{size / 1000:.2f} GB",
            )
        )
    return found


def _times(title: str, prefix: str, rows: dict[str, Any]) -> tuple[str, ...]:
    cells = []
    for what in ("first", "duplicate"):
        raw = rows.get(f"{prefix}/{what}/1", {}).get("raw", {}).get("twicesafe")
        if raw is None:
            cells.append("not published")
        else:
            cells.append(f"{raw['seconds']['median'] * 1e6:.0f} µs, {raw['ratio']['median']:.2f}×")
    return (title, *cells)
