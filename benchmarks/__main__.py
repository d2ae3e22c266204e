"""``python -m benchmarks``: measure, print the table, and keep the numbers where asked.

--quick          few rounds, small sizes, no dbos: a look, not a result
--only TEXT      cases whose id contains TEXT (may be given again); --list shows the ids
--rounds N       rounds per case
--out FILE       the numbers as JSON, and the page as Markdown beside them
--publish        the numbers into benchmarks/results/, the page into docs/ (full runs only)
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from . import imports, peers, size
from .cases import all_cases
from .report import (
    Row,
    as_json,
    as_markdown,
    import_row,
    machine,
    print_table,
    row_of,
    size_rows,
)

ROOT = Path(__file__).parent.parent
PUBLISHED = ROOT / "benchmarks" / "results" / "published.json"
PAGE = ROOT / "docs" / "explanation" / "performance.md"


def main(arguments: list[str] | None = None) -> int:
    asked = _parser().parse_args(arguments)
    cases = [case for case in all_cases() if _wanted(case.id, asked.only)]
    extras = [name for name in ("import", "size") if _wanted(name, asked.only)]
    if asked.list:
        print("\n".join([*(case.id for case in cases), *extras]))
        return 0
    if not cases and not extras:
        print("no case is called so; see --list", file=sys.stderr)
        return 2
    if asked.publish and (asked.quick or asked.only):
        print("only a full run is published: leave out --quick and --only", file=sys.stderr)
        return 2
    rounds = asked.rounds or (5 if asked.quick else 21)
    if asked.quick:
        peers.leave_out(peers.DBOS, "left out by --quick, it takes a minute")
    rows: list[Row] = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bench-", dir=size.place()) as folder:
        for number, case in enumerate(cases):
            _say(f"{number + 1}/{len(cases)} {case.id}")
            rows.append(row_of(case, case.run(Path(folder) / str(number), rounds)))
    if "import" in extras:
        _say("import")
        rows.append(import_row(imports.measured(3 if asked.quick else 9)))
    if "size" in extras:
        count = 20_000 if asked.quick else 1_000_000
        _say(f"size at {count:,} keys")
        rows += size_rows(*size.both(count), count)
    _say("")
    print_table(rows)
    print(f"{len(rows)} cases, {rounds} rounds, {time.monotonic() - began:.0f} s")
    _keep(asked, rows)
    return 0


def _keep(asked: argparse.Namespace, rows: list[Row]) -> None:
    about = machine()
    if asked.out is not None:
        asked.out.write_text(as_json(rows, about), "utf-8")
        asked.out.with_suffix(".md").write_text(as_markdown(rows, about), "utf-8")
    if asked.publish:
        for path, text in ((PUBLISHED, as_json(rows, about)), (PAGE, as_markdown(rows, about))):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")


def _wanted(name: str, only: list[str]) -> bool:
    return not only or any(text in name for text in only)


def _say(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", action="append", default=[], metavar="TEXT")
    parser.add_argument("--rounds", type=int, default=0, metavar="N")
    parser.add_argument("--out", type=Path, metavar="FILE")
    parser.add_argument("--publish", action="store_true")
    parser.add_argument("--list", action="store_true")
    return parser


if __name__ == "__main__":
    sys.exit(main())
