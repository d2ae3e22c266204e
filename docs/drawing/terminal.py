"""What a terminal showed, as a picture. ``python docs/record.py`` records it.

The demo is recorded as data: its kills are real, so the numbers differ from run to run. The picture is drawn from
that data by the demo's own report. Other sessions are recorded as the text that was printed, with its styles.
"""

from __future__ import annotations

import io
import json
import re
from dataclasses import fields

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

from twicesafe._demo import report, show
from twicesafe._demo.plan import DemoPlan
from twicesafe._demo.saga import Saga
from twicesafe._demo.tally import DemoTally

__all__ = ["demo", "screen"]

# The format of rich names a font of another host; a picture must not ask anybody for anything.
FORMAT = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
WIDE = 86


def demo(recorded: str) -> str:
    data = json.loads(recorded)
    console = Console(
        record=True, width=WIDE, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    again = f"twicesafe demo --seed {data['seed']}"
    console.print(Text.assemble(("$ ", "dim"), (again, "bold")))
    report.render(console, _show(data), again)
    return console.export_svg(title=again, code_format=FORMAT, unique_id="demo")


def screen(title: str, printed: str, wide: int = 96) -> str:
    console = Console(
        record=True, width=wide, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(Text.from_ansi(printed), soft_wrap=True)
    return console.export_svg(title=title, code_format=FORMAT, unique_id="screen")


def _show(data: dict[str, object]) -> show.Show:
    plan = DemoPlan.draw(data["seed"], data["payments"], data["kill_every"])
    headings = {mode: heading for mode, _, _, heading in show._CAST}
    runs = [
        show.DemoRun(
            run["mode"],
            run["title"],
            headings[run["mode"]],
            DemoTally(**{field.name: run[field.name] for field in fields(DemoTally)}),
        )
        for run in data["runs"]
    ]
    return show.Show(plan, data["workers"], runs, Saga(**data["saga"]))
