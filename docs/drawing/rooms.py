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

__all__ = ["map_of_rooms", "table_of_questions", "table_of_rooms"]

LEFT, WIDE, HIGH, GAP = 156, 900, 30, 8
HIDDEN: Final = {"", "__main__", "_version"}

QUESTIONS: Final = [
    ("where a delivery starts", "receiver/_receiver.py", "Receiver.process"),
    ("how the scope gets in front of a key", "receiver/_base.py", "ReceiverBase._full_key"),
    ("which worker may run: the claim", "_core/lifecycle.py", "claim"),
    ("which state follows which", "_core/transitions.py", "move"),
    ("the answer to a duplicate", "_core/duplicates.py", "outcome_of"),
    ("how a duplicate waits for the first delivery", "_core/delivery.py", "_follow"),
    ("the delay before the next attempt", "_core/settling.py", "_delay"),
    ("how a result becomes bytes, and its size limit", "_core/settling.py", "_encode"),
    ("the retries of a recording", "_core/outcome_recording.py", "retry_until_recorded"),
    ("the renewal of leases", "_runtime/lease_keeper.py", "LeaseKeeper"),
    ("how a URL becomes a store", "stores/_urls.py", "open_store"),
    ("the SQL of a claim on PostgreSQL", "_engines/postgresql/statements.py", "Statements"),
    ("the SQL of the sweep on MariaDB", "_engines/mysql/sweep.py", "Sweeper"),
    ("how the inbox uses your transaction", "_core/inbox_flow.py", "receive"),
    ("which message a relay publishes next", "_core/outbox/relay_publish.py", "publish_pending"),
    ("how a durable run takes a step", "_core/durable/steps.py", "take"),
    ("how the key of a request is parsed", "_core/http/key_field.py", "parse_key"),
    ("the error response to a request", "_core/http/problems.py", "problem_of"),
    ("how an event reaches observers", "events/_notifying.py", "notifier"),
    ("the HTTP status of an error", "errors.py", "TwicesafeError"),
]
"""What a reader looks for, the file, and the function or class in it."""


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


def table_of_questions(package: Path) -> str:
    """Where to look first. Fails if a function is not where the table says."""
    rows = ["| to find | open | see |\n|---|---|---|\n"]
    for question, file, name in QUESTIONS:
        found: ast.AST = ast.parse((package / file).read_text("utf-8"))
        for part in name.split("."):
            found = next(
                node for node in ast.iter_child_nodes(found) if getattr(node, "name", None) == part
            )
        rows.append(f"| {question} | `{file}` | `{name}` |\n")
    return "".join(rows)
