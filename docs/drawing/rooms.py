"""The map of the package: its folders and modules, layer by layer, from its own docstrings.

The order of the layers is the one that ``tests/house/test_layers.py`` holds by reading the imports: a layer
imports only those above it. What a folder is for is the first sentence of its docstring.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

from .svg import box, document, text, width

__all__ = ["map_of_rooms", "table_of_rooms"]

LEFT, WIDE, HIGH, GAP = 156, 900, 30, 8
HIDDEN: Final = {"", "__main__", "_version"}


def _layers() -> dict[str, set[str]]:
    from tests.house.test_layers import LAYERS

    return LAYERS


def _file(package: Path, name: str) -> Path:
    folder = package / name / "__init__.py"
    return folder if folder.exists() else package / f"{name}.py"


def _sentence(path: Path) -> str:
    """What a docstring says first; a name and a colon at its beginning are left out."""
    doc = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    first = " ".join(doc.split("\n\n")[0].split())
    first = re.sub(r"^[\w ,]{1,30}: ", "", first)
    first = re.split(r"(?<=[.?]) (?=[A-Z])", first)[0].replace("``", "`")
    return first[:1].upper() + first[1:]


def map_of_rooms(package: Path) -> str:
    """One row per layer; public names are highlighted, private ones are grey."""
    body: list[str] = []
    y = 20.0
    for layer, members in _layers().items():
        names = sorted(members - HIDDEN)
        if not names:
            continue
        top, x = y, LEFT + 16.0
        chips: list[str] = []
        for name in names:
            folder = (package / name).is_dir()
            shown = f"{name}/" if folder else name
            wide = width(shown, 13) * 1.12 + 20
            if x + wide > WIDE - 30:
                x, y = LEFT + 16.0, y + HIGH + GAP
            public = not name.startswith("_")
            chips.append(box(x, y + GAP, wide, HIGH, "box" if public else "note"))
            kind = "strong mono" if public else "mono"
            chips.append(text(x + wide / 2, y + GAP + 20, shown, kind, "middle", 12))
            x += wide + GAP
        y += HIGH + 2 * GAP
        body.append(
            f'<rect class="life" fill="none" x="{LEFT}" y="{top:.0f}" width="{WIDE - LEFT - 20}" '
            f'height="{y - top:.0f}" rx="8"/>'
        )
        body.append(text(LEFT - 14, (top + y) / 2 + 5, layer, "strong", "end"))
        body += chips
        y += 12
    body.append(f'<path class="edge" d="M18,{y - 14:.0f} V26" marker-end="url(#end)"/>')
    y += 6
    body.append(
        text(
            LEFT,
            y,
            "A layer imports only the layers above it. Public names are green, private ones grey.",
            "quiet",
            size=13,
        )
    )
    return document(WIDE, y + 16, "The layers of the package and what is in them", body)


def table_of_rooms(package: Path) -> str:
    rows = ["| layer | name | what it is for |\n|---|---|---|\n"]
    for layer, members in _layers().items():
        for name in sorted(members - HIDDEN):
            path = _file(package, name)
            folder = "/" if path.name == "__init__.py" else ""
            sentence = _sentence(path).replace("|", "\\|")
            rows.append(f"| {layer} | `{name}{folder}` | {sentence} |\n")
    return "".join(rows)
