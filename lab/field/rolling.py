"""Two versions on one database at once (C16): the code before the newest migration, and this one.

There is no release yet, so the older version is the commit before the one that last touched the
migrations, taken out of the repository's history.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Any

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


def _records_schemas() -> int:
    files = (ROOT / MIGRATIONS / "postgresql").glob("*.sql")
    return max(int(re.match(r"\d+", file.name)[0]) for file in files)  # type: ignore[index]


@trial("rolling versions", "C16", "deliveries", ("sqlite", *SERVERS))
def rolling(t: Trial) -> None:
    """Workers of the version before the newest migration and of this one share a database, opened in
    either order: is there an error, or a key that ran twice?"""
    keys = t.size(60, 1500)
    with folder_for() as folder:
        older, source = _older(folder)
        for turn, order in enumerate((("old", "new"), ("new", "old"))):
            with fresh_url(t.engine) as url:
                ledger = folder / f"ledger-{turn}"
                workers = []
                for number, version in enumerate((*order, *order)):
                    words = [str(Path(__file__).with_name("roller.py")), url, str(ledger)]
                    path = {"PYTHONPATH": str(source)} if version == "old" else {}
                    worker = subprocess.Popen(
                        [sys.executable, *words, str(keys), str(number + t.seed)],
                        env={**os.environ, **path},
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        text=True,
                    )
                    assert worker.stdout is not None
                    t.expect(worker.stdout.readline() == "ready\n", f"the {version} did not open")
                    workers.append((version, worker))
                _judge(t, workers, ledger, keys, source)
    t.notes.append(
        f"the older version is {older}; of the records' schema there is 1 so far"
        if _records_schemas() == 1
        else f"the older version is {older}"
    )


def _judge(t: Trial, workers: list[Any], ledger: Path, keys: int, source: Path) -> None:
    for _, worker in workers:
        worker.stdin.write("go\n")
        worker.stdin.flush()
    values: dict[str, set[str]] = {}
    for version, worker in workers:
        said, _ = worker.communicate(timeout=300)
        found = json.loads(said)
        is_old = found["source"].startswith(str(source))
        t.expect(is_old == (version == "old"), f"the {version} ran from {found['source']}")
        t.expect(not found["errors"], f"the {version} met {found['errors']}")
        t.tried += 2 * keys
        for key, told in found["values"].items():
            values.setdefault(key, set()).update(told)
    split = [key for key, told in values.items() if len(told) != 1]
    t.expect(not split, f"two results: {split[:5]}")
    runs = gathering.runs(ledger)
    t.expect(set(runs.values()) == {1}, f"a key ran {max(runs.values())} times")
