"""The published numbers, and what is made from them: the page and its pictures."""

from __future__ import annotations

import json
from pathlib import Path

from docs.drawing.bars import plots

from .report import as_json, as_markdown
from .rows import Row, in_sections

ROOT = Path(__file__).parent.parent
PUBLISHED = ROOT / "benchmarks" / "results" / "published.json"
PAGE = ROOT / "docs" / "explanation" / "performance.md"
PICTURES = ROOT / "docs" / "pictures"


def made() -> dict[Path, str]:
    """Every file that is made from the published numbers."""
    text = PUBLISHED.read_text("utf-8")
    published = json.loads(text)
    page = as_markdown([Row(**row) for row in published["rows"]], published["about"])
    pictures = {PICTURES / f"{name}.svg": picture for name, picture in plots(text).items()}
    return {PAGE: page, **pictures}


def write_page() -> None:
    for path, text in made().items():
        path.write_text(text, "utf-8")


def publish(rows: list[Row], about: dict[str, str], names: list[str]) -> None:
    """What this run has measured, beside the rest of earlier runs. `names`: all measurements that there are."""
    published = json.loads(PUBLISHED.read_text("utf-8"))
    new = {row.source for row in rows}
    old = [Row(**row) for row in published["rows"]]
    kept = [row for row in old if row.source in names and row.source not in new]
    everything = sorted([*kept, *rows], key=lambda row: names.index(row.source))
    PUBLISHED.write_text(as_json(in_sections(everything), published["about"] | about), "utf-8")
    write_page()
