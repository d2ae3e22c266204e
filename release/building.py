"""The wheel and the sdist, built twice from a copy of what git has: two builds, the same bytes.

The copy is `git archive`, so that nothing from the working folder gets in. Every time in the files is that of the
commit (``SOURCE_DATE_EPOCH``), so anyone with the commit can build the same files and compare their sums.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path

__all__ = ["DifferentBuildsError", "build", "digest", "epoch", "sources", "write_sums"]

SUMS = "SHA256SUMS"


class DifferentBuildsError(Exception):
    """Two builds of one commit differ."""


def git(root: Path, *arguments: str) -> bytes:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, check=True)
    return done.stdout


def epoch(root: Path, commit: str = "HEAD") -> int:
    """The time of a commit, in seconds."""
    return int(git(root, "log", "-1", "--format=%ct", commit))


def sources(root: Path, into: Path, commit: str = "HEAD") -> Path:
    """What git has of this commit, in a new folder."""
    with tarfile.open(fileobj=BytesIO(git(root, "archive", commit))) as archive:
        if hasattr(tarfile, "data_filter"):  # from Python 3.11.4 on
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(into)  # noqa: S202  # our own commit
    return into


def build(root: Path, out: Path) -> list[Path]:
    """Both files into an empty `out`; raises `DifferentBuildsError` if two builds differ."""
    out.mkdir(parents=True, exist_ok=True)
    for old in out.iterdir():
        old.unlink()
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        first = _built(sources(root, Path(one) / "source"), Path(one) / "dist", epoch(root), "1")
        second = _built(
            sources(root, Path(other) / "elsewhere"), Path(other) / "dist", epoch(root), "2"
        )
        sums = [{path.name: digest(path) for path in made} for made in (first, second)]
        if sums[0] != sums[1]:
            raise DifferentBuildsError(f"two builds of one commit differ: {sums[0]} and {sums[1]}")
        for path in first:
            (out / path.name).write_bytes(path.read_bytes())
    return sorted(out.iterdir())


def _built(source: Path, out: Path, at: int, seed: str) -> list[Path]:
    """One build, in a folder of its own, with another order of sets than the last one."""
    environ = {**os.environ, "SOURCE_DATE_EPOCH": str(at), "PYTHONHASHSEED": seed}
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(out)],
        cwd=source,
        env=environ,
        check=True,
        capture_output=True,
    )
    return sorted(path for path in out.iterdir() if path.suffix in (".whl", ".gz"))


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_sums(out: Path) -> Path:
    """The sums of all files, in the form that ``sha256sum --check`` reads."""
    sums = out / SUMS
    files = sorted(path for path in out.iterdir() if path.name != SUMS)
    sums.write_text("".join(f"{digest(path)}  {path.name}\n" for path in files))
    return sums
