"""What is left after relays were killed, judged by what was committed and what was published."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.house.repository import ROOT
from tests.outbox.carnage import BATCH

__all__ = ["Aftermath", "carnage"]


class Aftermath(NamedTuple):
    messages: int
    repeats: int


def carnage(url: str, folder: Path, kills: int, seed: int) -> Aftermath:
    """Kill relays, with 50 rows and half a late transaction for each kill; nothing may be amiss."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.outbox.carnage", url, str(folder)),
            *("--rows", str(kills * 50), "--kills", str(kills)),
            *("--late", str(kills // 2), "--seed", str(seed)),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110 + 3 * kills,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"pending": 0, "parked": 0}
    written = json.loads((folder / "written").read_text())
    published = [json.loads(line) for line in (folder / "published").read_text().splitlines()]
    first: dict[str, list[str]] = {}
    for id_, *content in published:
        assert first.setdefault(id_, content) == content, "the same id, another message"
    ids = list(first)
    lost = {*written["alone"], *(i for order in written["orders"].values() for i in order)} - {*ids}
    assert not lost, f"lost: {sorted(lost)[:5]}"
    assert not {*ids} & {*written["dropped"]}, "a message of a transaction that was rolled back"
    for key, order in written["orders"].items():
        assert [id_ for id_ in ids if first[id_][0] == key] == order, f"{key} is out of order"
    repeats = len(published) - len(ids)
    assert repeats <= kills * BATCH, f"{repeats} repeats"
    return Aftermath(len(ids), repeats)
