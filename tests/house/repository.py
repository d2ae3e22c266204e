"""The files of this repository, as a clone would hold them."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "twicesafe"

MADE_HERE = {".git", ".dev", ".venv", "site", "dist", "__pycache__", ".hypothesis", ".ruff_cache"}


def tracked_files() -> list[Path]:
    """What git tracks or would track; in an unpacked archive, everything that ./dev did not make."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
            text=True,
        ).stdout.split("\0")
    except (OSError, subprocess.CalledProcessError):
        found = (p for p in ROOT.rglob("*") if not MADE_HERE & set(p.relative_to(ROOT).parts))
    else:
        found = (ROOT / name for name in listed if name)
    return sorted(path for path in found if path.is_file())


def pages() -> list[Path]:
    """The README and every page of the documentation."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()
