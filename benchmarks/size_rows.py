"""The rows about bytes per key, sweeps and imports."""

from __future__ import annotations

from dataclasses import asdict

from .case import FLOOR, OTHER_CLOCK
from .engines import ENGINES
from .rows import OURS, Row, duration, number
from .size_servers import AIMS
from .spread import Spread
from .workload import Lap


def size_rows(disk: dict[str, float], memory: dict[str, float], count: int) -> list[Row]:
    section = _size_section(count)
    per_key, sweep = disk["bytes_per_key"], disk["sweep_seconds"]
    ratio = sweep / disk["floor_sweep_seconds"]
    return [
        Row(
            "size/sqlite",
            section,
            "SQLite file, bytes per key",
            {FLOOR: f"{disk['floor_bytes_per_key']:.0f} B", OURS: f"{per_key:.0f} B"},
            "≤ 345 B",
            per_key <= 345,
            raw=disk,
        ),
        Row(
            "size/memory",
            section,
            "memory store, bytes per key and peak of the process",
            {OURS: f"{memory['bytes_per_key']:.0f} B, {memory['peak_bytes'] / 2**20:.0f} MiB"},
            raw=memory,
        ),
        Row(
            "sweep/sqlite",
            section,
            "SQLite sweep, per removed key",
            {
                FLOOR: duration(disk["floor_sweep_seconds"]),
                OURS: f"{number(ratio)}×, {duration(sweep)}",
                OTHER_CLOCK: _processor(disk),
            },
            "≤ 30 µs",
            sweep <= 30e-6,
        ),
    ]


def server_size_rows(name: str, found: dict[str, float], count: int) -> list[Row]:
    shown, section = ENGINES[name].shown, _size_section(count)
    most, longest = AIMS[name]
    per_key, sweep = found["bytes_per_key"], found.get("sweep_seconds")
    rows = [
        Row(
            f"size/{name}",
            section,
            f"{shown}, bytes per key with its index",
            {OURS: f"{per_key:.0f} B"},
            "" if most is None else f"≤ {most:g} B",
            None if most is None else per_key <= most,
            raw=found,
        )
    ]
    if sweep is not None:
        rows.append(
            Row(
                f"sweep/{name}",
                section,
                f"{shown} sweep, per removed key",
                {OURS: duration(sweep), OTHER_CLOCK: _processor(found)},
                "" if longest is None else f"≤ {longest * 1e6:g} µs",
                None if longest is None else sweep <= longest,
            )
        )
    return rows


def _processor(found: dict[str, float]) -> str:
    return f"processor {duration(found['sweep_processor_seconds'])}"


def _size_section(count: int) -> str:
    keys = f"{count // 1_000_000} M" if count >= 1_000_000 else f"{count:,}"
    return f"Size and upkeep at {keys} keys, results of 200 bytes"


def import_row(found: dict[str, list[Lap]]) -> Row:
    processor = {name: Spread.of([lap.processor for lap in laps]) for name, laps in found.items()}
    wall = Spread.of([lap.wall for lap in found[OURS]])
    cells = {
        name: f"{duration(s.median)} ({number(s.low * 1e3)}–{number(s.high * 1e3)})"
        for name, s in processor.items()
    }
    return Row(
        "import",
        "Import",
        "import in a fresh interpreter",
        {**cells, OTHER_CLOCK: f"wall {duration(wall.median)}"},
        "≤ 60 ms",
        processor[OURS].median <= 0.060,
        raw={name: asdict(spread) for name, spread in processor.items()},
    )
