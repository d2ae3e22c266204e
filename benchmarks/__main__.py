"""``python -m benchmarks``: measure, print the table, and keep the numbers where asked.

--quick          few rounds, few cases, small sizes, no dbos and no justonce: a look, not a result
--only TEXT      cases whose id contains TEXT (may be given again); --list shows the ids
--rounds N       rounds per case
--keys N         how many keys are weighed in each store; 200,000 unless told
--out FILE       the numbers as JSON, and the page as Markdown beside them
--publish        the numbers into benchmarks/results/, the page into docs/ (full runs only)
--page           measure nothing: write the page again from the published numbers
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from . import engines, imports, inbox, outbox, peers, size, size_servers
from .cases import all_cases
from .report import (
    Row,
    as_json,
    as_markdown,
    import_row,
    machine,
    print_table,
    row_of,
    server_size_rows,
    size_rows,
)

ROOT = Path(__file__).parent.parent
PUBLISHED = ROOT / "benchmarks" / "results" / "published.json"
PAGE = ROOT / "docs" / "explanation" / "performance.md"


def main(arguments: list[str] | None = None) -> int:
    asked = _parser().parse_args(arguments)
    if asked.page:
        PAGE.write_text(published_page(), "utf-8")
        return 0
    cases = [case for case in all_cases() if _wanted(case.id, asked.only)]
    servers = (f"size/{name}" for name in engines.ENGINES)
    extras = [
        name
        for name in ("inbox", "outbox", "import", "size", *servers)
        if _wanted(name, asked.only)
    ]
    if asked.list:
        print("\n".join([*(case.id for case in cases), *extras]))
        return 0
    if not cases and not extras:
        print("no case is called so; see --list", file=sys.stderr)
        return 2
    if asked.publish and (asked.quick or asked.only):
        print("only a full run is published: leave out --quick and --only", file=sys.stderr)
        return 2
    rounds = asked.rounds or (3 if asked.quick else 21)
    if asked.quick:
        peers.leave_out(peers.DBOS, "left out by --quick, it takes a minute")
        peers.leave_out(peers.JUSTONCE, "left out by --quick, it takes a minute")
        cases = [case for case in cases if case.quick or asked.only]
    rows: list[Row] = []
    missing: dict[str, str] = {}
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bench-", dir=size.place()) as folder:
        for number, case in enumerate(cases):
            _say(f"{number + 1}/{len(cases)} {case.id}")
            try:
                if case.engine:
                    engines.server(case.engine)
            except engines.NoServerError as reason:
                missing.setdefault(case.engine, str(reason))
                continue
            rows.append(row_of(case, case.run(Path(folder) / str(number), rounds)))
    for name, measured in (("inbox", inbox.measured), ("outbox", outbox.measured)):
        if name in extras and not asked.quick:
            _say(name)
            try:
                rows += measured()
            except engines.NoServerError as reason:
                missing.setdefault(name, str(reason))
    if "import" in extras:
        _say("import")
        rows.append(import_row(imports.measured(3 if asked.quick else 9)))
    count = asked.keys or (10_000 if asked.quick else 200_000)
    if "size" in extras:
        _say(f"size at {count:,} keys")
        rows += size_rows(*size.both(count), count)
    weighed = [name for name in engines.ENGINES if f"size/{name}" in extras]
    rows += server_size_rows(size_servers.measured(count, _urls(weighed, missing)), count)
    _say("")
    print_table(rows)
    for engine, reason in missing.items():
        print(f"not measured: {engine} ({reason})")
    print(f"{len(rows)} cases, {rounds} rounds, {time.monotonic() - began:.0f} s")
    _keep(asked, rows)
    return 0


def published_page() -> str:
    """The page of the published numbers, with the words of today."""
    published = json.loads(PUBLISHED.read_text("utf-8"))
    return as_markdown([Row(**row) for row in published["rows"]], published["about"])


def _keep(asked: argparse.Namespace, rows: list[Row]) -> None:
    about = machine()
    if asked.out is not None:
        asked.out.write_text(as_json(rows, about), "utf-8")
        asked.out.with_suffix(".md").write_text(as_markdown(rows, about), "utf-8")
    if asked.publish:
        for path, text in ((PUBLISHED, as_json(rows, about)), (PAGE, as_markdown(rows, about))):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")


def _urls(names: list[str], missing: dict[str, str]) -> dict[str, str]:
    urls: dict[str, str] = {}
    for name in names:
        try:
            urls[name] = engines.server(name).url
        except engines.NoServerError as reason:
            missing.setdefault(name, str(reason))
    return urls


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
    parser.add_argument("--keys", type=int, default=0, metavar="N")
    parser.add_argument("--out", type=Path, metavar="FILE")
    parser.add_argument("--publish", action="store_true")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--list", action="store_true")
    return parser


if __name__ == "__main__":
    sys.exit(main())
