"""``python -m release build|check``: the files of a release into dist/, or what still stands in its way."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from . import building, checks, sbom

ROOT = Path(__file__).parent.parent


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m release", description=__doc__)
    parser.add_argument("command", choices=["build", "check"])
    parser.add_argument("--out", type=Path, default=ROOT / "dist", metavar="FOLDER")
    asked = parser.parse_args(arguments)
    if asked.command == "check":
        return checks.run(ROOT, asked.out)
    built = building.build(ROOT, asked.out)
    sbom.write(ROOT, built, asked.out)
    building.write_sums(asked.out)
    for path in sorted(asked.out.iterdir()):
        print(path.name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
