"""Pictures of the documentation, drawn as plain SVG from short sources: ``python docs/generate.py``.

    sources/*.seq    sequence diagrams, one line per message      sequences.py
    sources/*.tree   questions and answers, by indentation        trees.py
    sources/demo.json  one run of ``twicesafe demo --json``       terminal.py
    sources/*.ansi     what other commands printed                terminal.py
    sources/*.walk   which functions one call visits              walks.py
    the package      its folders and their docstrings             rooms.py
    the benchmark    benchmarks/results/published.json            bars.py

No program, font or script from elsewhere is needed to draw them or to look at them. Each picture has
an opaque background and follows the reader's light or dark setting, so it is readable on any page.
"""

from __future__ import annotations

from .bars import plots
from .rooms import map_of_rooms, table_of_questions, table_of_rooms
from .sequences import sequence
from .terminal import demo, screen
from .trees import tree
from .walks import listing, steps_of, walk

__all__ = [
    "demo",
    "listing",
    "map_of_rooms",
    "plots",
    "screen",
    "sequence",
    "steps_of",
    "table_of_questions",
    "table_of_rooms",
    "tree",
    "walk",
]
