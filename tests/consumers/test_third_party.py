"""The example of a source in its own package: it keeps every rule, and its URL is found."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.house.repository import ROOT

PACKAGE = ROOT / "examples" / "twicesafe-spool"
sys.path.insert(0, str(PACKAGE))
try:
    from test_twicesafe_spool import TestSpool  # noqa: F401 - collected here
finally:
    sys.path.remove(str(PACKAGE))

USE = """
import sys
from twicesafe import Receiver
from twicesafe.consumers import Consumer
from twicesafe.outbox.publishers import Message, open_publisher

root = sys.argv[1]
publisher = open_publisher(f"spool://{root}")
assert publisher.publish([Message(id_, "orders", b"{}") for id_ in ("a", "bad", "a")]) == [None] * 3
seen = []

def handle(message):
    seen.append(message.id)
    if message.id == "bad":
        raise ValueError("bad")

with Receiver.open("memory://") as receiver:
    with Consumer.open(f"spool://{root}?queue=orders", receiver=receiver, recover=lambda *_: dead) as consumer:
        from twicesafe.consumers import DeadLetter
        dead = DeadLetter("no")
        report = consumer.drain(handle, idle=0.2)
assert sorted(seen) == ["a", "bad"], seen
print(report.ran, report.replayed, report.dead)
"""


def test_installed_its_scheme_is_found(tmp_path: Path) -> None:
    """Built as a user would build it, and unpacked where Python looks."""
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=PACKAGE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    [wheel] = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", USE, str(tmp_path / "spool")],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout.split() == ["1", "1", "1"], ran.stderr
