"""The parts of a proof: each is kept as soon as it is done, so that a long run can go on after a break.

A part is taken from an earlier run only if it was asked in the same words, and nothing that it depends
on has changed since.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from twicesafe import __version__

__all__ = ["Parts", "our_version"]

T = TypeVar("T")

ROOT: Final = Path(__file__).parent.parent
FOLDER: Final = ROOT / ".dev" / "proof"
OURS: Final = "src/twicesafe"


class _Kept(msgspec.Struct):
    asked: str
    sources: str
    """A hash over the files that the part was made of."""
    found: msgspec.Raw


class Parts:
    def __init__(self, *, resume: bool, folder: Path = FOLDER) -> None:
        self._resume = resume
        self._folder = folder

    def get(
        self,
        name: str,
        asked: str,
        kind: Any,
        uses: Sequence[str],
        make: Callable[[], T],
        *,
        good: Callable[[T], bool] = lambda found: True,
    ) -> T:
        """What was found before, or else now; only what is good is kept."""
        file = self._folder / f"{name}.json"
        sources = _hash_of((OURS, *uses))
        if self._resume and file.exists():
            kept = msgspec.json.decode(file.read_bytes(), type=_Kept)
            if (kept.asked, kept.sources) == (asked, sources):
                print(f"{name}: as found before", flush=True)
                found: T = msgspec.json.decode(kept.found, type=kind)
                return found
        found = make()
        if not good(found):
            file.unlink(missing_ok=True)
            return found
        self._folder.mkdir(parents=True, exist_ok=True)
        kept = _Kept(asked, sources, msgspec.Raw(msgspec.json.encode(found)))
        file.write_bytes(msgspec.json.encode(kept))
        return found


def _hash_of(folders: Sequence[str]) -> str:
    """Over all that is in these folders, or fits these patterns."""
    found = [ROOT.glob(one if one.endswith(".py") else f"{one}/**/*.py") for one in folders]
    files = sorted({file for some in found for file in some})
    whole = hashlib.sha256()
    for file in files:
        whole.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes() + b"\0")
    return whole.hexdigest()[:16]


def our_version() -> str:
    """Our version, and the commit of it that is tried or measured."""
    git = ["git", "-C", str(ROOT)]
    try:
        commit = subprocess.check_output([*git, "rev-parse", "--short", "HEAD"], text=True).strip()
        changed = subprocess.check_output([*git, "status", "--short", "src"], text=True)
    except (OSError, subprocess.CalledProcessError):
        return __version__  # not from a clone
    return f"{__version__} at {commit}{', changed' if changed else ''}"
