"""Killed at any point, every answer is in the store, in the archive, or in both; the next run finishes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from twicesafe import Receiver
from twicesafe._values.records import State
from twicesafe.archive import Archive

POINTS = ("before the file", "half a file", "before its name", "after its name", "before erasing", "while erasing")  # fmt: skip
KEYS = ("tx-1", "tx-2", "tx-3")


@pytest.mark.parametrize("point", POINTS)
def test_nothing_is_lost(point: str, url: str, tmp_path: Path):
    place = tmp_path / "archive"
    with Receiver.open(url) as receiver:
        for key in KEYS:
            receiver.process(key, lambda key=key: f"answer of {key}")
    dying = Path(__file__).with_name("dying.py")
    died = subprocess.run([sys.executable, str(dying), url, str(place), point], check=False)
    assert died.returncode == -9

    archive = Archive.open(str(place))
    with Receiver.open(url) as receiver:
        for key in KEYS:
            record = receiver.record(key)
            assert record is not None
            if record.state is not State.COMPLETED:
                found = archive.find(receiver.key(key))
                assert found is not None
                assert found.answer() == f"answer of {key}"
        receiver.archive(str(place), older_than=0)
        for key in KEYS:
            found = archive.find(receiver.key(key))
            assert found is not None
            assert found.answer() == f"answer of {key}"
