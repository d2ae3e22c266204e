"""Sequence diagrams from one line per message.

title: A duplicate
actors: Sender | Receiver | Store
Sender -> Receiver: process("tx-123")      a call
Store --> Receiver: completed              an answer
note Store: tx-123 is completed            what is true there now
crash Receiver: killed                     its line ends
start Receiver: another process            a line begins again
across: 30 seconds later                   a line over all actors
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from .svg import box, document, text, width, wrap

__all__ = ["sequence"]

MESSAGE: Final = re.compile(r"(?P<a>[^:]+?) (?P<arrow>-->|->) (?P<b>[^:]+?): (?P<words>.+)")
WORD: Final = re.compile(r"(?P<kind>note|crash|start|across) ?(?P<who>[^:]*): (?P<words>.+)")
SIZE: Final = 13
GAP: Final = 44
MARGIN: Final = 24
TOP: Final = 64


class _Drawing:
    def __init__(self, actors: list[str], columns: list[float]) -> None:
        self.x = dict(zip(actors, columns, strict=True))
        self.alive = dict.fromkeys(actors, float(TOP))
        self.lines: list[str] = []
        self.body: list[str] = []
        self.y = TOP + 8.0

    def message(self, a: str, b: str, words: str, reply: bool) -> None:
        self.y += GAP
        here, there = self.x[a], self.x[b]
        kind, tip = ("reply", "end") if reply else ("arrow", "tip")
        if a == b:
            self.body.append(
                f'<path class="{kind}" d="M{here:.0f},{self.y - 8:.0f} h34 v18 h-32" '
                f'marker-end="url(#{tip})"/>'
            )
            self.body.append(text(here + 42, self.y + 5, words, "halo", size=SIZE))
            return
        self.body.append(
            f'<path class="{kind}" d="M{here:.0f},{self.y:.0f} L{there:.0f},{self.y:.0f}" '
            f'marker-end="url(#{tip})"/>'
        )
        self.body.append(
            text((here + there) / 2, self.y - 7, words, "halo", anchor="middle", size=SIZE)
        )

    def note(self, who: str, words: str) -> None:
        rows = wrap(words, 190, SIZE)
        high = 16.0 * len(rows) + 12
        wide = max(width(row, SIZE) for row in rows) + 26
        self.y += 20
        self.body.append(box(self.x[who] - wide / 2, self.y, wide, high, "note"))
        for number, row in enumerate(rows):
            at = self.y + 18 + 16 * number
            self.body.append(text(self.x[who], at, row, "quiet", "middle", SIZE))
        self.y += high - 10

    def crash(self, who: str, words: str) -> None:
        self.y += GAP - 8
        x, y = self.x[who], self.y
        self.life(who, y)
        self.body.append(
            f'<path class="cross" d="M{x - 9:.0f},{y - 9:.0f} l18,18 m0,-18 l-18,18"/>'
        )
        self.body.append(text(x + 18, y + 5, words, "bad halo", size=SIZE))

    def start(self, who: str, words: str) -> None:
        self.y += GAP - 8
        self.alive[who] = self.y + 14
        wide = width(words, SIZE) + 22
        self.body.append(box(self.x[who] - wide / 2, self.y - 14, wide, 28))
        self.body.append(text(self.x[who], self.y + 5, words, "", "middle", SIZE))
        self.y += 6

    def across(self, _: str, words: str) -> None:
        self.y += GAP - 6
        right = max(self.x.values()) + 70
        left = min(self.x.values()) - 70
        self.body.append(
            f'<path class="mark" d="M{left:.0f},{self.y:.0f} L{right:.0f},{self.y:.0f}"/>'
        )
        self.body.append(text((left + right) / 2, self.y - 7, words, "bad halo", "middle", SIZE))

    def life(self, who: str, until: float) -> None:
        begun = self.alive.pop(who, None)
        if begun is not None:
            x = self.x[who]
            self.lines.append(f'<path class="life" d="M{x:.0f},{begun:.0f} L{x:.0f},{until:.0f}"/>')


def sequence(source: str) -> str:
    """The picture of one source."""
    title, actors, steps = _read(source)
    columns = _columns(actors, steps)
    drawing = _Drawing(actors, columns)
    kinds: dict[str, Callable[[str, str], None]] = {
        "note": drawing.note,
        "crash": drawing.crash,
        "start": drawing.start,
        "across": drawing.across,
    }
    for step in steps:
        if found := MESSAGE.fullmatch(step):
            drawing.message(found["a"], found["b"], found["words"], found["arrow"] == "-->")
        elif found := WORD.fullmatch(step):
            kinds[found["kind"]](found["who"], found["words"])
        else:
            raise ValueError(f"{title}: not understood: {step}")
    bottom = drawing.y + 26
    for actor in actors:
        drawing.life(actor, bottom)
    heads = []
    for actor in actors:
        wide = width(actor) * 1.06 + 28
        heads.append(box(drawing.x[actor] - wide / 2, TOP - 36, wide, 32))
        heads.append(text(drawing.x[actor], TOP - 15, actor, "strong", "middle"))
    wide = max(columns[-1] + _half(actors[-1], steps), columns[-1] + 90) + MARGIN
    return document(wide, bottom + 16, title, [*drawing.lines, *heads, *drawing.body])


def _read(source: str) -> tuple[str, list[str], list[str]]:
    rows = [row.strip() for row in source.splitlines() if row.strip() and row[0] != "#"]
    title = rows[0].removeprefix("title: ")
    actors = [name.strip() for name in rows[1].removeprefix("actors: ").split("|")]
    return title, actors, rows[2:]


def _columns(actors: list[str], steps: list[str]) -> list[float]:
    """Far enough from each other for every text between them."""
    gaps = [150.0] * (len(actors) - 1)
    for step in steps:
        found = MESSAGE.fullmatch(step)
        if not found or found["a"] == found["b"]:
            continue
        a, b = sorted((actors.index(found["a"]), actors.index(found["b"])))
        needed = (width(found["words"], SIZE) + 34) / (b - a)
        for gap in range(a, b):
            gaps[gap] = max(gaps[gap], needed)
    columns = [MARGIN + max(_half(actors[0], steps), 60)]
    for gap in gaps:
        columns.append(columns[-1] + gap)
    return columns


def _half(actor: str, steps: list[str]) -> float:
    """Half the width of what stands on one actor's line."""
    found = [WORD.fullmatch(step) for step in steps]
    own = [f["words"] for f in found if f and f["who"] == actor and f["kind"] != "crash"]
    return max(
        [width(words, SIZE) / 2 + 12 for words in own if len(words) < 30]
        + [100.0] * any(len(words) >= 30 for words in own)
        + [width(actor) / 2 + 14]
    )
