"""How often a delivery asks its server, what DynamoDB charges for it, and what a record weighs there.

``python -m benchmarks.calls --publish`` writes benchmarks/results/calls.json, from which docs/generate.py makes
the page about choosing a store. Everything here is counted, nothing is timed.

    round trips   a proxy counts how often a connection turns from answering to asking
    units         as DynamoDB charges: one per KB of an item that is written, or that refuses a write
    bytes         of a record with a result of 200 bytes: of the item by DynamoDB's rule, of the document in BSON
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from lab.field.drivers import through
from lab.field.proxy import Proxy
from tests.servers import NoServerError, launch
from twicesafe import Receiver

from .workload import RESULT, key_of

__all__ = ["FILE", "main"]

FILE: Final = Path(__file__).parent / "results" / "calls.json"
ROUNDS: Final = 41

SERVERS: Final = {
    "postgresql": "postgres",
    "mariadb": "mariadb",
    "valkey": "valkey",
    "etcd": "etcd",
    "dynamodb": "dynamodb",
    "mongodb": "mongodb",
}
"""Names of the results, and the servers of the tests."""


def count(name: str) -> dict[str, float]:
    """Of a first delivery and of a repeat: the median of many, all by one caller."""
    with ExitStack() as stack:
        server = stack.enter_context(launch(SERVERS[name]))
        fresh = stack.enter_context(server.fresh())
        proxy = stack.enter_context(Proxy(server.port))
        receiver = stack.enter_context(Receiver.open(through(fresh, proxy.port)))
        found: dict[str, list[int]] = {"first": [], "repeat": []}
        for number in range(ROUNDS + 5):
            for counted in found.values():
                before = proxy.asked
                receiver.process(key_of(number), lambda: RESULT)
                if number >= 5:  # the first calls connect, and prepare statements
                    counted.append(proxy.asked - before)
        more = _weighed(name, server, fresh)
    return {f"{what} round trips": statistics.median(each) for what, each in found.items()} | more


def _weighed(name: str, server: Any, url: str) -> dict[str, float]:
    weigh: dict[str, Callable[[Any, str], dict[str, float]]]
    weigh = {"dynamodb": _item, "mongodb": _document}
    return weigh[name](server, url) if name in weigh else {}


def _item(server: Any, url: str) -> dict[str, float]:
    from twicesafe._engines.dynamodb.settings import Settings

    client, table = server.client(), Settings.of(url).table
    sizes = [_item_size(item) for item in client.scan(TableName=table)["Items"]]
    size = statistics.median(sizes)
    unit = -(-int(size) // 1024)
    return {"bytes": size, "first write units": 2 * unit, "repeat write units": unit}


def _item_size(item: dict[str, Any]) -> int:
    """Names and values, as the Developer Guide of DynamoDB says under "item sizes and formats"."""
    return sum(len(name.encode()) + _value_size(value) for name, value in item.items())


def _value_size(value: dict[str, Any]) -> int:
    ((kind, held),) = value.items()
    if kind == "S":
        return len(held.encode())
    if kind == "B":
        return len(bytes(held))
    if kind == "N":  # about a byte for two significant digits, and one more
        return -(-len(held.lstrip("-").strip("0")) // 2) + 1
    if kind in ("BOOL", "NULL"):
        return 1
    parts = held.values() if kind == "M" else held
    names = sum(len(name.encode()) for name in held) if kind == "M" else 0
    return 3 + names + sum(1 + _value_size(part) for part in parts)


def _document(server: Any, url: str) -> dict[str, float]:
    import bson

    sizes = [len(bson.encode(each)) for each in server.collection(url).find()]
    return {"bytes": statistics.median(sizes)}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calls", description=__doc__)
    parser.add_argument("--publish", action="store_true")
    asked = parser.parse_args(arguments)
    found: dict[str, Any] = {}
    for name in SERVERS:
        try:
            found[name] = count(name)
        except NoServerError as reason:
            print(f"not counted: {name} ({str(reason).splitlines()[0]})")
            return 1
        print(name, found[name])
    if asked.publish:
        FILE.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
