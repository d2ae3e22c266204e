"""Relays that are killed: nothing lost, nothing skipped, order kept, repeats bounded and under the same id.

``TWICESAFE_OUTBOX_KILLS=200`` (with 50 rows and half a late transaction for each) is the full size.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.outbox.aftermath import carnage

KILLS = int(os.environ.get("TWICESAFE_OUTBOX_KILLS", "16"))


def test_killed_relays_lose_nothing(url: str, tmp_path: Path):
    after = carnage(url, tmp_path, KILLS, seed=1)
    assert after.messages > KILLS * 30
