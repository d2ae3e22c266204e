"""What all drawings share: palettes for light and dark, text, boxes, arrows."""

from __future__ import annotations

from html import escape
from typing import Final

__all__ = ["box", "document", "text", "width", "wrap"]

LIGHT: Final = {
    "paper": "#ffffff",
    "ink": "#1f2933",
    "quiet": "#52606d",
    "line": "#8795a1",
    "fill": "#e0f2f1",
    "edge": "#00796b",
    "soft": "#f1f5f9",
    "bad": "#c62828",
    "good": "#2e7d32",
    "other": "#b0bec5",
}
DARK: Final = {
    "paper": "#1b222b",
    "ink": "#e6edf3",
    "quiet": "#a9b4c0",
    "line": "#77838f",
    "fill": "#0f3d3a",
    "edge": "#4db6ac",
    "soft": "#27313c",
    "bad": "#ff8a80",
    "good": "#81c784",
    "other": "#546e7a",
}
CLASSES: Final = """
.paper{fill:var(--paper)} text{fill:var(--ink)} .quiet{fill:var(--quiet)} .bad{fill:var(--bad)}
.strong{font-weight:600} .mono{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}
.box{fill:var(--fill);stroke:var(--edge)} .note{fill:var(--soft);stroke:var(--line)} .bar{fill:var(--edge)} .peer{fill:var(--other)}
.life{stroke:var(--line);stroke-dasharray:3 4} .arrow{stroke:var(--ink);stroke-width:1.4;fill:none}
.reply{stroke:var(--quiet);stroke-width:1.2;stroke-dasharray:6 4;fill:none} .edge{stroke:var(--line);stroke-width:1.4;fill:none}
.cross{stroke:var(--bad);stroke-width:3;fill:none} .mark{stroke:var(--bad);stroke-width:1.5;stroke-dasharray:4 3}
.tip{fill:var(--ink)} .faint{fill:var(--line)} .halo{paint-order:stroke;stroke:var(--paper);stroke-width:4px}
"""
ARROWS: Final = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" '
    'orient="auto-start-reverse"><path class="tip" d="M0,0 L8,4 L0,8 z"/></marker>'
    '<marker id="end" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" '
    'orient="auto-start-reverse"><path class="faint" d="M0,0 L8,4 L0,8 z"/></marker></defs>'
)


def _variables(palette: dict[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in palette.items())


def document(wide: float, high: float, title: str, body: list[str]) -> str:
    """One picture. The title is what a screen reader says, and what a mouse shows."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:.0f} {high:.0f}" '
        f'width="{wide:.0f}" height="{high:.0f}" role="img" '
        'font-family="system-ui,-apple-system,Segoe UI,Roboto,sans-serif" font-size="14">\n'
        f"<title>{escape(title)}</title>\n"
        f"<style>svg{{{_variables(LIGHT)}}}"
        f"@media (prefers-color-scheme:dark){{svg{{{_variables(DARK)}}}}}{CLASSES}</style>\n"
        f"{ARROWS}\n"
        f'<rect class="paper" width="{wide:.0f}" height="{high:.0f}" rx="8"/>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def width(words: str, size: float = 14) -> float:
    """About how wide a text is; wide enough for the usual sans-serif fonts."""
    narrow = sum(char in "iljtfr.,:;'|!()[] " for char in words)
    return (len(words) - 0.45 * narrow) * size * 0.58


def wrap(words: str, room: float, size: float = 14) -> list[str]:
    """The words in lines that fit into the room."""
    lines = [""]
    for word in words.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and width(longer, size) > room:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def text(
    x: float, y: float, words: str, kind: str = "", anchor: str = "start", size: float = 0
) -> str:
    marks = f' class="{kind}"' if kind else ""
    marks += f' text-anchor="{anchor}"' if anchor != "start" else ""
    marks += f' font-size="{size:g}"' if size else ""
    return f'<text x="{x:.0f}" y="{y:.0f}"{marks}>{escape(words)}</text>'


def box(
    x: float, y: float, wide: float, high: float, kind: str = "box", dashed: bool = False
) -> str:
    dash = ' stroke-dasharray="4 3"' if dashed else ""
    return (
        f'<rect class="{kind}" x="{x:.0f}" y="{y:.0f}" width="{wide:.0f}" height="{high:.0f}" '
        f'rx="6"{dash}/>'
    )
