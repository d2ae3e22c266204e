"""Relays that are killed: nothing lost, nothing skipped, order kept, repeats bounded and under the same id.

``TWICESAFE_OUTBOX_KILLS=200`` (with 50 rows and half a late transaction for each) is the full size.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.house.repository import ROOT
from tests.outbox.carnage import BATCH

KILLS = int(os.environ.get("TWICESAFE_OUTBOX_KILLS", "16"))


def test_killed_relays_lose_nothing(url: str, tmp_path: Path):
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.outbox.carnage", url, str(tmp_path)),
            *("--rows", str(KILLS * 50), "--kills", str(KILLS)),
            *("--late", str(KILLS // 2), "--seed", "1"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110 + 3 * KILLS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"pending": 0, "parked": 0}
    written = json.loads((tmp_path / "written").read_text())
    published = [json.loads(line) for line in (tmp_path / "published").read_text().splitlines()]
    first: dict[str, list[str]] = {}
    for id_, *content in published:
        assert first.setdefault(id_, content) == content, "the same id, another message"
    ids = list(first)
    lost = {*written["alone"], *(i for order in written["orders"].values() for i in order)} - {*ids}
    assert not lost
    assert not {*ids} & {*written["dropped"]}, "a message of a transaction that was rolled back"
    for key, order in written["orders"].items():
        assert [id_ for id_ in ids if first[id_][0] == key] == order, f"{key} is out of order"
    repeats = len(published) - len(ids)
    assert repeats <= KILLS * BATCH
    print(f"{len(ids)} messages, {KILLS} kills, {repeats} repeats")
