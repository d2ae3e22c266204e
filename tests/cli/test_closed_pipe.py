"""`twicesafe keys list | head -1`: the reader closes the pipe, and the command ends without a word."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.line import Line
from twicesafe import Key, Receiver


@pytest.mark.parametrize(
    "words",
    [
        "keys list",
        "keys list --json",
        "keys list --all",
        "keys list --all --json",
        "keys show tx-1",
        "keys failures",
        "audit",
        "stats --json",
        "top --once",
        "outbox status",
        "doctor",
        "version",
        "keys --help",
    ],
)
def test_a_reader_that_left_is_no_error(line: Line, receiver: Receiver, words: str):
    receiver.process(Key("tx-1", absolute=True), lambda: 1)
    receiver.release(Key("tx-1", absolute=True), by="ana", why="not paid", force=True)
    chosen = [] if words in ("version", "keys --help") else ["--store", line.url]
    reading, writing = os.pipe()
    os.close(reading)  # before the first byte: each write fails, whatever its size
    try:
        ran = subprocess.run(
            [sys.executable, "-m", "twicesafe", *words.split(), *chosen],
            stdout=writing,
            stderr=subprocess.PIPE,
            check=False,
        )
    finally:
        os.close(writing)
    assert (ran.returncode, ran.stderr.decode()) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a full disk to write to")
@pytest.mark.parametrize("words", ["stats", "stats --json", "version", "version --json"])
def test_a_full_disk_is_reported_once(line: Line, receiver: Receiver, words: str):
    chosen = [] if words.startswith("version") else ["--store", line.url]
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "twicesafe", *words.split(), *chosen],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert ran.returncode == 3
    assert ran.stderr.count("No space left on device") == 1
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    "closed, json", [(">&-", ""), (">&-", "--json"), ("2>&-", ""), ("2>&-", "--json")]
)
def test_a_closed_stream_is_no_error(line: Line, receiver: Receiver, closed: str, json: str):
    """As a service manager starts a command. An error never goes to stdout instead."""
    place = line.url if closed == ">&-" else f"{line.url}.missing"
    words = shlex.join([sys.executable, "-m", "twicesafe", "stats", "--store", place])
    ran = subprocess.run(
        ["sh", "-c", f"{words} {json} {closed}"], capture_output=True, text=True, check=False
    )
    assert (ran.stdout, ran.stderr) == ("", "")
    assert ran.returncode == (0 if closed == ">&-" else 3)
