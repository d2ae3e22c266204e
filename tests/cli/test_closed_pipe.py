"""`twicesafe keys list | head -1`: the reader closes the pipe, and the command ends without a word."""

from __future__ import annotations

import os
import subprocess
import sys

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
