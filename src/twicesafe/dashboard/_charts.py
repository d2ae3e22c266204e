"""Charts, drawn by the server as SVG: no script, no style attribute, tones from the stylesheet.

A chart is drawn twice, for a wide and for a narrow page, so that its text is readable on both. The
stylesheet shows one of them. Every bar has its numbers as a title.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final, NamedTuple

__all__ = ["Bar", "Drawing", "Figure", "Part", "draw", "share_bar"]

_BOTTOM, _TOP, _RIGHT = 26, 22, 6


class Size(NamedTuple):
    name: str
    wide: int
    high: int
    left: int
    labels: int
    """The most labels along the axis."""


SIZES: Final = (Size("wide", 540, 210, 40, 11), Size("narrow", 352, 196, 34, 5))


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a bar, in one tone."""

    kind: str
    """Its class in the stylesheet."""
    amount: float


@dataclass(frozen=True, slots=True)
class Bar:
    start: float
    """From 0, the left edge, to 1."""
    width: float
    parts: tuple[Part, ...]
    words: str
    """The numbers, as a title."""
    above: str = ""
    """Written above the bar."""

    @property
    def amount(self) -> float:
        return sum(part.amount for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """What to draw, in shares of the plot."""

    bars: Sequence[Bar]
    ticks: Sequence[tuple[float, str]]
    """Places along the axis and their labels."""
    logarithmic: bool = False
    limit: float | None = None
    """A vertical line…"""
    limit_words: str = ""
    """…and its words."""
    unit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A chart on a page, or why there is none."""

    title: str
    note: str = ""
    svgs: tuple[str, ...] = ()
    legend: tuple[tuple[str, str], ...] = ()
    """Class and words of each tone."""
    empty: str = ""
    """Why there is nothing to see, and what to do."""


def draw(drawing: Drawing, words: str) -> tuple[str, ...]:
    """The chart in every size. ``words``: what it shows, for those who do not see it."""
    return tuple(_svg(drawing, words, size) for size in SIZES)


def _svg(drawing: Drawing, words: str, size: Size) -> str:
    inner_wide = size.wide - size.left - _RIGHT
    inner_high = size.high - _TOP - _BOTTOM
    floor = _TOP + inner_high
    top = _nice(max((bar.amount for bar in drawing.bars), default=0.0))

    def across(share: float) -> float:
        return size.left + inner_wide * share

    def tall(amount: float) -> float:
        if drawing.logarithmic:
            return inner_high * math.log1p(amount) / math.log1p(top)
        return inner_high * amount / top

    parts: list[str] = []
    for line in () if drawing.logarithmic else (top, top / 2):
        y = floor - tall(line)
        parts.append(f'<path class="grid" d="M{size.left},{y:.1f}H{size.wide - _RIGHT}"/>')
        parts.append(_text(size.left - 8, y + 4, f"{line:g}{drawing.unit}", "axis", "end"))
    if drawing.limit is not None:
        x = across(drawing.limit)
        right = size.wide - _RIGHT
        parts.append(
            f'<rect class="outside" x="{x:.1f}" y="{_TOP - 8}" width="{right - x:.1f}" height="{inner_high + 8}"/>'
        )
    for bar in drawing.bars:
        parts += _bar(bar, across, tall, floor)
    parts.append(f'<path class="floor" d="M{size.left},{floor}H{size.wide - _RIGHT}"/>')
    step = max(1, math.ceil(len(drawing.ticks) / size.labels))
    for place, label in drawing.ticks[::step]:
        anchor = "end" if place > 0.97 else "start" if place < 0.03 else "middle"
        parts.append(_text(across(place), floor + 17, label, "axis", anchor))
    if drawing.limit is not None:
        x = across(drawing.limit)
        parts.append(f'<path class="limit" d="M{x:.1f},{_TOP - 8}V{floor}"/>')
        parts.append(_text(x - 6, _TOP - 2, drawing.limit_words, "limit-words", "end"))
    return (
        f'<svg class="chart {size.name}" viewBox="0 0 {size.wide} {size.high}" role="img">'
        f"<title>{escape(words)}</title>{''.join(parts)}</svg>"
    )


def _bar(
    bar: Bar, across: Callable[[float], float], tall: Callable[[float], float], floor: float
) -> list[str]:
    gap = min(0.006, bar.width * 0.16)
    x, wide = across(bar.start + gap / 2), across(bar.start + bar.width - gap / 2)
    wide = max(1.0, wide - x)
    high = max(tall(bar.amount), 2.0) if bar.amount else 0.0
    found, y = [], floor
    for part in bar.parts:
        if not part.amount:
            continue
        piece = high * part.amount / bar.amount
        y -= piece
        found.append(
            f'<rect class="bar {part.kind}" x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{piece:.1f}"/>'
        )
    if bar.above:
        found.append(_text(x + wide / 2, y - 5, bar.above, "above", "middle"))
    # The whole column shows the title, also where the bar is low.
    top = f'<rect class="column" x="{x:.1f}" y="{_TOP}" width="{wide:.1f}" height="{floor - _TOP:.1f}"/>'
    return [f"<g><title>{escape(bar.words)}</title>{top}{''.join(found)}</g>"]


def share_bar(parts: Sequence[Part], words: str) -> str:
    """One horizontal bar, divided; every part that is there can be seen."""
    total = sum(part.amount for part in parts)
    found, x = [], 0.0
    shown = [part for part in parts if part.amount]
    least = 6.0
    room = 1000.0 - least * len(shown)
    for part in shown:
        wide = least + room * part.amount / total
        found.append(
            f'<rect class="bar {part.kind}" x="{x:.1f}" y="0" width="{max(1.0, wide - 2):.1f}" height="12"/>'
        )
        x += wide
    return (
        '<svg class="shares" viewBox="0 0 1000 12" preserveAspectRatio="none" role="img">'
        f"<title>{escape(words)}</title>{''.join(found)}</svg>"
    )


def _text(x: float, y: float, words: str, kind: str, anchor: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _nice(most: float) -> float:
    """The next round number, to divide the axis by."""
    if most <= 0:
        return 1.0
    decade: float = 10.0 ** math.floor(math.log10(most))
    return next(
        step * decade for step in (1, 1.2, 1.6, 2, 3, 4, 5, 6, 8, 10) if step * decade >= most
    )
