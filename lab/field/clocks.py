"""Clocks that jump by an hour while all are at work (C8).

*Of the server*, by libfaketime: leases end early or late; a key may be taken over while its worker lives, with the
cause recorded. Two results of one key may not exist. *Of the workers*, by a preloaded library of ours
(`wallclock.c`): they read no wall clock, so nothing at all may change.
"""

from __future__ import annotations

import glob
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tests.servers import NoServerError
from tests.servers.mariadb import MariaDB
from tests.servers.postgres import Postgres
from tests.servers.valkey import Valkey
from twicesafe import Policy, Receiver

from .clock_load import Work
from .preload import compiled
from .trial import KEYED, SERVERS, Trial, trial
from .zombies import fresh_url

__all__ = ["server_clocks", "worker_clocks"]

HOURS: Final = ("+0", "-3600", "+3600", "-1800", "+1800")
CALLERS: Final = 8
FELT: Final = "taken over early or late"
"""A busy machine may need more jumps until one meets a running handler."""


def library() -> str:
    for path in sorted(glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1")):
        return path
    raise NoServerError("no libfaketime on this machine; apt install faketime")


class Clock:
    """A file that says what time it is, for processes that are started with this environment."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "faketime"
        self.set("+0")

    def set(self, offset: str) -> None:
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{offset}\n")
        fresh.chmod(0o644)
        fresh.rename(self._file)

    @property
    def settings(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": library(),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }


class WallClock:
    """The same for a worker, whose other clocks must stay as they are."""

    def __init__(self, folder: Path) -> None:
        self._library, self._file = compiled("wallclock", folder), folder / "offset"
        self._file.write_bytes(struct.pack("q", 0))

    def set(self, offset: str) -> None:
        with self._file.open("r+b") as file:
            file.write(struct.pack("q", int(offset)))

    @property
    def settings(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library), "WALLCLOCK": str(self._file)}


class _Faked:
    """A server of the tests under a clock of ours."""

    def command(self) -> Sequence[str]:
        self.clock = Clock(self.folder)  # type: ignore[attr-defined]
        words = [f"{name}={value}" for name, value in self.clock.settings.items()]
        return ["env", *words, *super().command()]  # type: ignore[misc]


class _Postgres(_Faked, Postgres):
    pass


class _Valkey(_Faked, Valkey):
    pass


class _MariaDB(_Faked, MariaDB):
    pass


_KINDS: Final[dict[str, Any]] = {"postgres": _Postgres, "valkey": _Valkey, "mariadb": _MariaDB}


@trial("clock of the server", "C8", "jumps")
def server_clocks(t: Trial) -> None:
    """The server's clock jumps by up to two hours, forward and back, under load. Does a key ever get two
    results?"""
    rng = t.rng
    server = _KINDS[t.engine]()
    server.prepare()
    server.start()
    with server:
        Receiver.open(server.url).close()
        work = Work(server.url, Policy(lease=2, wait=1, max_attempts=50), t.seed)

        def jump() -> None:
            least = t.size(8, 50)
            while t.tried < least or (t.tried < 400 and not work.counts[FELT]):
                time.sleep(0.25)
                server.clock.set(rng.choice(HOURS))
                t.tried += 1
            time.sleep(0.25)
            server.clock.set("+3600")  # whatever was claimed in the future is over

        work.run(jump)
        _judge(t, work, server.url)
    t.expect(t.counts[FELT], "no jump was felt: this shows nothing")


def _judge(t: Trial, work: Work, url: str) -> None:
    with Receiver.open(url) as receiver:
        for key, told in work.told.items():
            t.expect(len(told) == 1, f"{key} has {len(told)} results: {sorted(told)}")
            again = receiver.process(key, str, "run again").value
            t.expect({again} == told, f"{key}: callers got {told}, the record says {again!r}")
    for text in work.unexpected[:5]:
        t.broke(f"a caller got {text}")
    t.count("keys", len(work.told))
    for what, count in work.counts.items():
        t.count(what, count)


@trial("clock of the workers", "C8", "jumps", ("sqlite", *SERVERS, *KEYED))
def worker_clocks(t: Trial) -> None:
    """A worker's wall clock jumps by up to two hours, forward and back, under load. Does anything
    change?"""
    rng = t.rng
    with fresh_url(t.engine) as url, tempfile.TemporaryDirectory() as folder:
        clock = WallClock(Path(folder))
        with subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("clock_load.py")), url],
            env={**os.environ, **clock.settings},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as worker:
            assert worker.stdout is not None
            assert worker.stdin is not None
            worker.stdout.readline()  # it is at work
            for _ in range(t.size(8, 50)):
                clock.set(rng.choice(HOURS))
                t.tried += 1
                time.sleep(0.15)
            worker.stdin.write("enough\n")
            worker.stdin.close()
            found = json.loads(worker.stdout.readline())
    t.expect(found["furthest"] > 600, "the worker's clock did not jump: this shows nothing")
    t.expect(not found["errors"], f"callers met {found['errors']}")
    t.expect(found["results"] == 1, f"a key has {found['results']} results")
    for what in ("taken over early or late", "told that the claim was lost"):
        t.expect(not found[what], f"{what}: {found[what]}")
    t.count("keys", found["keys"])
