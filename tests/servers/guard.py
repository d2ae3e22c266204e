"""A small program that outlives a killed test run just long enough to clean up after it.

It reads from its standard input what the run started (``+pid``), stopped (``-pid``) and where the
data lies (``@folder``). When the run ends, in whatever way, it kills what is left and removes the
folders. Signals sent to the terminal's group do not reach it.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import time

LOOK_EVERY = 0.5


def obey(line: str, pids: set[int], folders: set[str]) -> None:
    sign, rest = line[:1], line[1:].strip()
    if sign == "+":
        pids.add(int(rest))
    elif sign == "-":
        pids.discard(int(rest))
    elif sign == "@":
        folders.add(rest)


def clean(pids: set[int], folders: set[str]) -> None:
    # First what lets PostgreSQL drop its shared memory, then SIGKILL.
    for kind in (signal.SIGQUIT, signal.SIGKILL):
        for pid in pids:
            try:
                os.kill(pid, kind)
            except ProcessLookupError:
                continue
        time.sleep(0.3 if pids else 0)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def main(parent: int) -> None:
    for kind in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(kind, signal.SIG_IGN)
    pids: set[int] = set()
    folders: set[str] = set()
    rest = b""
    while os.getppid() == parent:
        readable, _, _ = select.select([0], [], [], LOOK_EVERY)
        if not readable:
            continue
        read = os.read(0, 65536)
        if not read:
            break
        *lines, rest = (rest + read).split(b"\n")
        for line in lines:
            obey(line.decode(), pids, folders)
    clean(pids, folders)


if __name__ == "__main__":
    main(int(sys.argv[1]))
