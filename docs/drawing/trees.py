"""Questions and answers as a tree, from left to right.

    title: Which one do I need?
    Where is the effect?
        rows of your database: Inbox
        anywhere else: May it repeat?
            yes: takeover="retry"
            no: takeover="hold"

Before the colon stands the answer that leads to a box, after it what the box says. A box that ends
with a question mark is a question; the others are where you end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from .svg import box, document, text, width, wrap

__all__ = ["tree"]

WIDE: Final = 190
ROW: Final = 66
MARGIN: Final = 20


@dataclass
class _Node:
    answer: str
    words: str
    children: list[_Node] = field(default_factory=list)
    x: float = 0
    y: float = 0

    @property
    def high(self) -> float:
        return 18 * len(wrap(self.words, WIDE - 20)) + 16


def tree(source: str) -> str:
    rows = [row for row in source.splitlines() if row.strip()]
    title = rows[0].removeprefix("title: ")
    root = _read(rows[1:])
    gaps = _gaps([root])
    left = [float(MARGIN)]
    for gap in gaps:
        left.append(left[-1] + WIDE + gap)
    bottom = _place(root, 0, left, 0)
    body: list[str] = []
    _draw(root, body)
    return document(left[-1] + WIDE + MARGIN, bottom * ROW + MARGIN, title, body)


def _read(rows: list[str]) -> _Node:
    root = _Node("", rows[0].strip())
    path = [root]
    for row in rows[1:]:
        depth = (len(row) - len(row.lstrip())) // 4
        answer, _, words = row.strip().partition(": ")
        node = _Node(answer, words)
        path[depth - 1].children.append(node)
        path[depth:] = [node]
    return root


def _gaps(level: list[_Node]) -> list[float]:
    below = [child for node in level for child in node.children]
    if not below:
        return []
    return [max(width(child.answer, 13) for child in below) + 46, *_gaps(below)]


def _place(node: _Node, depth: int, left: list[float], row: float) -> float:
    """Leaves take a row each, a question stands in the middle of its answers."""
    node.x = left[depth]
    if not node.children:
        node.y = row * ROW + ROW / 2 + MARGIN / 2
        return row + 1
    for child in node.children:
        row = _place(child, depth + 1, left, row)
    node.y = (node.children[0].y + node.children[-1].y) / 2
    return row


def _draw(node: _Node, body: list[str]) -> None:
    question = node.words.endswith("?")
    body.append(box(node.x, node.y - node.high / 2, WIDE, node.high, "note" if question else "box"))
    rows = wrap(node.words, WIDE - 20)
    for number, row in enumerate(rows):
        at = node.y + 5 - 9 * (len(rows) - 1) + 18 * number
        body.append(text(node.x + WIDE / 2, at, row, "" if question else "strong", "middle"))
    for child in node.children:
        x, there = node.x + WIDE, child.x
        turn = x + 16
        body.append(
            f'<path class="edge" d="M{x:.0f},{node.y:.0f} H{turn:.0f} V{child.y:.0f} '
            f'H{there:.0f}" marker-end="url(#end)"/>'
        )
        body.append(
            text((turn + there - 8) / 2, child.y - 6, child.answer, "quiet halo", "middle", 13)
        )
        _draw(child, body)
