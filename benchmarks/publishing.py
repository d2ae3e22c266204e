"""The published numbers, and what is made from them: the page and its pictures."""

from __future__ import annotations

import json
from pathlib import Path

from docs.drawing.bars import plots

from .report import as_json, as_markdown
from .rows import Row

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


def publish(rows: list[Row], about: dict[str, str]) -> None:
    PUBLISHED.write_text(as_json(rows, about), "utf-8")
    write_page()
