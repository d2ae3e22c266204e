"""Two versions on one database at once (C16): the code before the newest migration, and this one.

There is no release yet, so the older version is the commit before the one that last touched the
migrations, taken out of the repository's history.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

from tests.kill import gathering

from .concurrent_processes import folder_for
from .running import ROOT
from .trial import SERVERS, Absent, Trial, trial
from .zombies import fresh_url

__all__ = ["rolling"]

MIGRATIONS = "src/twicesafe/_engines/sql/schema_files"
WERE_IN = "src/twicesafe/stores/migrations"


def _git(*words: str) -> bytes:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, timeout=60, check=False)
    if done.returncode:
        raise Absent("the history is not here (a shallow clone, or no git)")
    return done.stdout


def _older(folder: Path) -> tuple[str, Path]:
    """The commit before the newest migration, and where its source lies now."""
    added = ("log", "-1", "--format=%H", "--find-renames", "--diff-filter=A")  # not: moved
    newest = _git(*added, "--", MIGRATIONS, WERE_IN).decode().strip()
    older = _git("rev-parse", "--short", f"{newest}^").decode().strip()
    with tarfile.open(fileobj=BytesIO(_git("archive", older, "src"))) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # not in 3.11.2
        archive.extractall(folder)
    return older, folder / "src"


class Worker:
    """One process of either version."""

    def __init__(self, t: Trial, version: str, url: str, ledger: Path, source: Path) -> None:
        self.t, self.version, self._source = t, version, source
        self._words = [str(Path(__file__).with_name("roller.py")), url, str(ledger)]

    def start(self, keys: int, seed: int, *name: str) -> Worker:
        path = {"PYTHONPATH": str(self._source)} if self.version == "old" else {}
        self._process = subprocess.Popen(
            [sys.executable, *self._words, str(keys), str(seed), *name],
            env={**os.environ, **path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        ready = self._process.stdout.readline() == "ready\n"
        self.t.expect(ready, f"the {self.version} did not open")
        return self

    def go(self) -> Worker:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return self

    def ended(self, values: dict[str, set[str]]) -> list[str]:
        """Its errors; the values that it got are added to `values`."""
        said, _ = self._process.communicate(timeout=300)
        found = json.loads(said)
        is_old = found["source"].startswith(str(self._source))
        self.t.expect(
            is_old == (self.version == "old"), f"the {self.version} ran from {found['source']}"
        )
        for key, told in found["values"].items():
            values.setdefault(key, set()).update(told)
            self.t.tried += 2
        errors: list[str] = found["errors"]
        return errors


@trial("rolling versions", "C16", "deliveries", ("sqlite", *SERVERS))
def rolling(t: Trial) -> None:
    """Workers of the version before the newest migration and of this one share a database, opened in
    either order. Is there an error, or a key that ran twice? Then an operator migrates it under load. Do
    the new ones continue without an error, and are the old ones refused before their handlers run?"""
    keys = t.size(60, 1500)
    with folder_for() as folder:
        older, source = _older(folder)
        for turn, order in enumerate((("old", "new"), ("new", "old"))):
            with fresh_url(t.engine) as url:
                ledger = folder / f"ledger-{turn}"

                def worker(version: str, url: str = url, ledger: Path = ledger) -> Worker:
                    return Worker(t, version, url, ledger, source)

                worker("old").start(1, 2, "first").go().ended({})  # it is an old database
                _side_by_side(t, worker, order, ledger, keys)
                _migrated(t, worker, url, ledger, keys)
    t.notes.append(f"the older version is {older}")


def _side_by_side(
    t: Trial, worker: Callable[[str], Worker], order: tuple[str, str], ledger: Path, keys: int
) -> None:
    workers = [
        worker(version).start(keys, number + t.seed)
        for number, version in enumerate((*order, *order))
    ]
    values: dict[str, set[str]] = {}
    for each in [each.go() for each in workers]:
        errors = each.ended(values)
        t.expect(not errors, f"the {each.version} met {errors}")
    _judge(t, values, ledger, set())


REFUSALS = ("no twicesafe tables", "no such table", "a newer twicesafe wrote")
"""What the older version says where its records are no longer in the layout that it knows."""


def _migrated(t: Trial, worker: Callable[[str], Worker], url: str, ledger: Path, keys: int) -> None:
    before = [worker(version).start(keys, t.seed, "more") for version in ("new", "new", "old")]
    for each in before:
        each.go()
    command = [sys.executable, "-m", "twicesafe", "migrate", "--store", url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    t.expect(done.returncode == 0, f"migrate said {done.stderr}")
    after = worker("new").start(keys, t.seed, "more").go()
    values: dict[str, set[str]] = {}
    refused: set[str] = set()
    for each in (*before, after):
        errors = each.ended(values)
        if each.version == "old":
            refused = {error.partition(":")[0] for error in errors}
            strange = [error for error in errors if not any(text in error for text in REFUSALS)]
            t.expect(not strange, f"the old met {strange}")
        else:
            t.expect(not errors, f"the new met {errors}")
    _judge(t, values, ledger, refused)


def _judge(t: Trial, values: dict[str, set[str]], ledger: Path, refused: set[str]) -> None:
    """`refused`: keys of an old worker that was refused, perhaps after its handler had run. Its lease
    ended then, and another took over."""
    split = [key for key, told in values.items() if len(told) != 1]
    t.expect(not split, f"two results: {split[:5]}")
    twice = [key for key, runs in gathering.runs(ledger).items() if runs != 1]
    t.expect(len(twice) <= 1 and set(twice) <= refused, f"ran twice: {twice}")
