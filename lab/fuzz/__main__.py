"""``python -m lab.fuzz [--inputs N] [--seed N] [TARGET …]``: ends with 1 if there are findings."""

from __future__ import annotations

import argparse
import sys

from . import TARGETS, fuzz


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("target", nargs="*", choices=[[], *TARGETS])
    asked = parser.parse_args(arguments)
    found = 0
    for name in asked.target or TARGETS:
        tally = fuzz(TARGETS[name], asked.inputs, asked.seed)
        print(tally, flush=True)
        for finding in tally.findings:
            print("   ", finding)
        found += len(tally.findings)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
