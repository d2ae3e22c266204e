"""``python -m tests.maps [run]``: write the pages; with ``run``, run and record the tests first."""

from __future__ import annotations

import subprocess
import sys

from tests.house.repository import ROOT
from tests.maps import pages


def main(arguments: list[str]) -> int:
    status = 0
    if arguments[:1] == ["run"]:
        status = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "--record-maps",
                *arguments[1:],
                *pages.to_run(),
            ],
            cwd=ROOT,
            check=False,
        ).returncode
    pages.write()
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
