"""The field's parts of the proof pages: an overview, and every trial with what it tried, counted and lost."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
from collections.abc import Sequence

from .trial import TRIALS, Trial

__all__ = ["field_page", "field_versions", "trials_in_short"]

DRIVERS = ("psycopg", "asyncpg", "redis", "PyMySQL", "hypothesis")

NAMES = {
    "sqlite": "SQLite",
    "postgres": "PostgreSQL",
    "valkey": "Valkey",
    "mariadb": "MariaDB",
    "etcd": "etcd",
    "dynamodb": "DynamoDB (emulator)",
    "mongodb": "MongoDB (FerretDB)",
    "kafka": "Kafka",
    "rabbitmq": "RabbitMQ",
    "nats": "NATS JetStream",
    "ministack": "SQS (emulator)",
}


def field_versions(trials: Sequence[Trial]) -> dict[str, str]:
    """The versions of everything else in the trials."""
    found = {"kernel": platform.release()} if trials else {}
    for name in DRIVERS if trials else ():
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def trials_in_short(trials: Sequence[Trial]) -> list[str]:
    if not trials:
        return []
    broken = [done for done in trials if done.broken]
    seeds = sorted({done.seed for done in trials})
    size = (
        "the small size of CI, unless a trial says otherwise" if _is_small(trials) else "full size"
    )
    return [
        "## Trials on real servers",
        "",
        "These trials cause faults in real servers, real processes and the network between them. Each engine",
        "runs in its own process with its own servers. Connections go through a proxy that cuts, delays,",
        f"throttles and drops traffic. This run had {size}. It had {len(trials)}",
        f"trials with {len(seeds)} seeds, **{len(broken)} of them broken**. (`lab/results/proof.json` has the seed of",
        "each.) A failing trial prints the command that repeats it. You can run any trial alone:",
        "",
        "<!-- no-run: for a clone of the repository, not for users of the package -->",
        "```console",
        "$ python -m lab field 'cut replies' --engine postgres --seed 1",
        "```",
        "",
        "| trial | engines | tried | broken |",
        "|---|---|---|---|",
        *(_total(name, some) for name, some in _by_name(trials)),
        "",
        "[The trials in detail](proof-trials.md): what each of them does, and what it counted on each engine.",
        "",
    ]


def field_page(trials: Sequence[Trial]) -> list[str]:
    lines = []
    small = _is_small(trials)
    for name, some in _by_name(trials):
        entry = TRIALS[name]
        lines += [
            f"## {_title(name)}",
            "",
            f"{entry.question}{_apart(some) if small else ''}",
            "",
            f"| | {entry.unit} | broken | counted | s |",
            "|---|---|---|---|---|",
            *(_row(done, mixed=not all(one.full == done.full for one in some)) for done in some),
            "",
            *_notes(some),
        ]
    return lines


def _by_name(trials: Sequence[Trial]) -> list[tuple[str, list[Trial]]]:
    found = ((name, [done for done in trials if done.name == name]) for name in TRIALS)
    return [(name, some) for name, some in found if some]


def _is_small(trials: Sequence[Trial]) -> bool:
    return any(not done.full for done in trials)


def _title(name: str) -> str:
    return name[:1].upper() + name[1:]


def _total(name: str, some: Sequence[Trial]) -> str:
    engines = ", ".join(NAMES.get(done.engine, done.engine) for done in some if not done.skipped)
    tried = sum(done.tried for done in some)
    broken = sum(bool(done.broken) for done in some)
    unit = TRIALS[name].unit
    return f"| {_title(name)} | {engines} | {tried:,} {unit.removesuffix('s') if tried == 1 else unit} | **{broken}** |"


def _apart(some: Sequence[Trial]) -> str:
    """What is said of trials that were run apart from the others."""
    versions = sorted({one for done in some for one in done.version.split("; ") if one})
    whole = TRIALS[some[0].name].portions
    size = " Full size." if all(done.full for done in some) else ""
    if size and any(done.counts.get("portions", whole) != whole for done in some):
        size = f" The full size has {whole} portions; those that were tried are counted below."
    return size + (f" Tried on {', '.join(versions)}." if versions else "")


def _row(done: Trial, mixed: bool) -> str:
    """`mixed`: other engines were tried in another size."""
    engine = NAMES.get(done.engine, done.engine) + (", full size" if mixed and done.full else "")
    if done.skipped:
        return f"| {engine} | | | skipped: {done.skipped} | |"
    counts = ", ".join(f"{what} {count:,}" for what, count in done.counts.items() if count)
    verdict = f"**{len(done.broken)}**: {_cell(done.broken[0])}" if done.broken else "0"
    return f"| {engine} | {done.tried:,} | {verdict} | {_cell(counts)} | {done.seconds:.0f} |"


def _notes(some: Sequence[Trial]) -> list[str]:
    notes = sorted({note for done in some for note in done.notes})
    return [f"{'; '.join(note[:1].upper() + note[1:] for note in notes)}.", ""] if notes else []


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "/").split())[:300]
