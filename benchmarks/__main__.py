"""``python -m benchmarks``: measure, print the table, and keep the numbers where asked.

--quick          few rounds, few cases, small sizes, no dbos and no justonce: a look, not a result
--only TEXT      cases whose id contains TEXT (may be given again); --list shows the ids
--rounds N       rounds per case
--keys N         how many keys are weighed in each store; 200,000 unless told
--huge           table growth up to 100 million keys too: hours, and 60 GB of disk and 40 of memory
--resume         go on with a run that was broken off: what it has measured, of the same code, is kept
--out FILE       the numbers as JSON, and the page as Markdown beside them
--publish        the numbers into benchmarks/results/, the page and its pictures into docs/, beside those of earlier
                 runs that this one did not measure; not with --quick
--page           measure nothing: write page and pictures again from the published numbers

--against COMMIT [CASE …]   compare this version of the library with that of a commit: all cases, or those whose
                 id contains a CASE. The status is 1 if one is slower than 1.03 times, beyond noise
--json FILE      the comparison as JSON
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from . import against, peers
from .cases import calls
from .publishing import publish, write_page
from .report import as_json, as_markdown, machine, print_table
from .running import Run, selected


def main(arguments: list[str] | None = None) -> int:
    asked = _parser().parse_args(arguments)
    if asked.page:
        write_page()
        return 0
    if asked.against:
        return _against(asked)
    if asked.cases:
        return _refused("to choose cases of an ordinary run, use --only")
    if asked.publish and asked.quick:
        return _refused("a look is not published: leave out --quick")
    chosen = selected(asked.only, huge=asked.huge)
    if asked.list:
        print("\n".join(chosen))
        return 0
    if not chosen:
        return _refused("no case is called so; see --list")
    if asked.quick:
        peers.leave_out(peers.DBOS, "left out by --quick, it takes a minute")
        peers.leave_out(peers.JUSTONCE, "left out by --quick, it takes a minute")
    rounds = asked.rounds or (3 if asked.quick else 21)
    keys = asked.keys or (10_000 if asked.quick else 200_000)
    began = time.monotonic()
    run = Run(rounds, keys, quick=asked.quick, named=bool(asked.only), resume=asked.resume)
    rows = run.rows(chosen)
    print_table(rows)
    for name, reason in run.missing.items():
        print(f"not measured: {name} ({reason})")
    print(f"{len(rows)} rows, {rounds} rounds, {time.monotonic() - began:.0f} s")
    about = machine()
    if asked.out is not None:
        asked.out.write_text(as_json(rows, about), "utf-8")
        asked.out.with_suffix(".md").write_text(as_markdown(rows, about), "utf-8")
    if asked.publish:
        publish(rows, about, list(selected([], huge=True)))
    return 0


def _against(asked: argparse.Namespace) -> int:
    wanted = [*asked.cases, *asked.only]
    cases = [case for case in calls() if not wanted or any(text in case.id for text in wanted)]
    if asked.list:
        print("\n".join(case.id for case in cases))
        return 0
    if not cases:
        return _refused("no case is called so; see --against COMMIT --list")
    return against.run(asked.against, cases, blocks=asked.rounds, out=asked.json)


def _refused(why: str) -> int:
    print(why, file=sys.stderr)
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--against", default="", metavar="COMMIT")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--only", action="append", default=[], metavar="TEXT")
    parser.add_argument("--rounds", type=int, default=0, metavar="N")
    parser.add_argument("--keys", type=int, default=0, metavar="N")
    parser.add_argument("--out", type=Path, metavar="FILE")
    for switch in ("--quick", "--resume", "--huge", "--publish", "--page", "--list"):
        parser.add_argument(switch, action="store_true")
    return parser


if __name__ == "__main__":
    sys.exit(main())
