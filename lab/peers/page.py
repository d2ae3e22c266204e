"""What was seen, as JSON, and a page made of nothing but that."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from .peer import PEERS

__all__ = ["PAGE", "SEEN", "Cell", "Seen", "as_markdown", "read", "write"]

ROOT: Final = Path(__file__).parent.parent.parent
SEEN: Final = ROOT / "lab" / "results" / "peers.json"
PAGE: Final = ROOT / "docs" / "explanation" / "peers-tried.md"

_STORES: Final = {"postgres": "PostgreSQL", "valkey": "Valkey"}


class Cell(msgspec.Struct, frozen=True):
    store: str
    scenario: str
    peer: str
    said: str


class Seen(msgspec.Struct):
    versions: dict[str, str]
    lease: float
    wait: float
    cells: list[Cell]

    def said(self, store: str, scenario: str, peer: str) -> str:
        return next(
            cell.said
            for cell in self.cells
            if (cell.store, cell.scenario, cell.peer) == (store, scenario, peer)
        )


def read() -> Seen:
    return msgspec.json.decode(SEEN.read_bytes(), type=Seen)


def write(seen: Seen) -> None:
    SEEN.write_bytes(msgspec.json.format(msgspec.json.encode(seen), indent=1) + b"\n")
    PAGE.write_text(as_markdown(seen), "utf-8")


def as_markdown(seen: Seen) -> str:
    lines = [*_head(seen)]
    for store in dict.fromkeys(cell.store for cell in seen.cells):
        lines += _table(seen, store)
    return "\n".join([*lines, *_settings(seen), *_LIMITS, ""])


def _head(seen: Seen) -> list[str]:
    versions = ", ".join(f"{name} {version}" for name, version in seen.versions.items())
    return [
        "# Other libraries under test",
        "",
        "This page shows what the same failures do to twicesafe and to other Python libraries, in real processes on",
        "real servers. A program writes each cell from the answers, the errors and a ledger of starts. This command",
        "runs it:",
        "",
        "<!-- no-run: for a clone of the repository, with the benchmarks' environment -->",
        "```console",
        "$ .dev/bench/bin/python -m lab.peers",
        "```",
        "",
        "(`make bench` creates that environment.) Versions:",
        f"{versions}.",
        f"Leases lasted {seen.lease:g} s, and a duplicate could wait for {seen.wait:g} s.",
        "",
        "How to read a cell: the *owner* is the first caller. The *second* and the *third* call while the owner",
        "still runs; the *repeat* calls afterwards. *Ran* means that the library started the protected function for",
        "this caller. *Right* and *equal* mean that the caller got the answer of the first run. The last part of a",
        "cell is the total number of starts.",
        "",
    ]


def _table(seen: Seen, store: str) -> list[str]:
    cells = [cell for cell in seen.cells if cell.store == store]
    peers = list(dict.fromkeys(cell.peer for cell in cells))
    scenarios = dict.fromkeys(cell.scenario for cell in cells)
    return [
        f"## On {_STORES[store]}",
        "",
        f"| | {' | '.join(peers)} |",
        f"|---|{'---|' * len(peers)}",
        *(
            f"| {name} | {' | '.join(seen.said(store, name, peer) for peer in peers)} |"
            for name in scenarios
        ),
        "",
    ]


def _settings(seen: Seen) -> list[str]:
    peers = dict.fromkeys(cell.peer for cell in seen.cells)
    return [
        "## How each was set up",
        "",
        "We use the public API of each library, with its own settings for lease, waiting, tenant and payload where it",
        "has them. Each adapter is one short file in `lab/peers/`.",
        "",
        *(f"- **{peer}**: {PEERS[peer].settings}." for peer in peers),
        "",
    ]


_LIMITS: Final = [
    "## What this can show, and what it cannot",
    "",
    "- We chose the scenarios, and twicesafe was built for them. Other libraries have other goals: dbos runs",
    "  workflows of steps, powertools is for Lambda with DynamoDB.",
    "- Leases are short here, so that a run takes minutes. With long leases the same problems are rarer.",
    "- We ran every scenario once per column. Results that depend on timing, such as threads that collide, may",
    "  differ in the next run.",
    "- We tried only blocking APIs. Other versions and other stores may differ. If you know better settings for a",
    "  library, please open an issue: we will change the adapter and the table.",
]
