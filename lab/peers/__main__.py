"""``python -m lab.peers``: every library through every scenario; the table, the JSON and the page.

  --peer NAME …      only these (nothing is written)
  --scenario NAME …  only these (nothing is written)

Needs the benchmarks' environment, which has the libraries: ``.dev/bench/bin/python -m lab.peers``.
"""

from __future__ import annotations

import argparse
import contextlib
import platform
import sys
from collections.abc import Iterable, Iterator

from tests.servers import shared

from .column import Column
from .page import Cell, Seen, write
from .peer import PEERS, WAIT, name_of_version
from .scenarios import SCENARIOS

LEASE = 1.0
STORES = ("postgres", "valkey")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--peer", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--scenario", nargs="+", choices=SCENARIOS, default=list(SCENARIOS))
    asked = parser.parse_args(arguments)
    missing = [name for name in asked.peer if PEERS[name].missing]
    if missing:
        print(f"not installed here: {', '.join(missing)}; run it in .dev/bench", file=sys.stderr)
        return 2
    cells = []
    for store in STORES:
        peers = [name for name in asked.peer if store in PEERS[name].stores]
        for peer in peers:
            for cell in column(peer, store, asked.scenario):
                print(f"{store} | {cell.peer} | {cell.scenario}: {cell.said}", flush=True)
                cells.append(cell)
    if set(asked.peer) == set(PEERS) and set(asked.scenario) == set(SCENARIOS):
        write(Seen(versions(), LEASE, WAIT, cells))
    return 0


def column(
    peer: str, store: str, scenarios: Iterable[str] = SCENARIOS, lease: float = LEASE
) -> Iterator[Cell]:
    lacks = PEERS[peer].lacks
    with shared(store).fresh() as url, Column(peer, store, url, lease) as workers:
        for name in scenarios:
            yield Cell(store, name, peer, lacks.get(name) or SCENARIOS[name](workers))


def versions() -> dict[str, str]:
    found = {name: name_of_version(name) for name in PEERS}
    return found | {"Python": platform.python_version()} | _servers()


def _servers() -> dict[str, str]:
    import psycopg

    with psycopg.connect(shared("postgres").url, autocommit=True) as connection:
        row = connection.execute("SHOW server_version").fetchone()
    assert row is not None
    with contextlib.closing(shared("valkey").client()) as client:
        valkey = client.info("server")
    return {
        "PostgreSQL": row[0].split()[0],
        "Valkey": valkey.get("valkey_version", valkey["redis_version"]),
    }


if __name__ == "__main__":
    sys.exit(main())
