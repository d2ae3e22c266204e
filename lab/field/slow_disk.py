"""A server is killed while its disk is slow (C6).

With ``appendfsync everysec`` Valkey does not write while a sync of its file is under way: it answers at
once and keeps the commands in its own memory, for up to two seconds. So not only a power cut can lose
them, but a crash of the server alone. With ``always`` nothing is answered before it is on disk.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from tests.servers.valkey import Valkey
from twicesafe import Policy, Receiver

from .preload import compiled
from .trial import Trial, trial

__all__ = ["slow_disk"]

SYNC: Final = {"everysec": 500, "always": 100}
"""Milliseconds of a sync: long enough to be met, by each way of syncing."""

POLICY: Final = Policy(lease=2, wait=10)
"""Where only the result was lost, its claim ends soon."""

FEW: Final = 10
"""Deliveries before the blow; more, until it hurts."""


class _SlowValkey(Valkey):
    """A Valkey whose disk is slow."""

    def __init__(self, appendfsync: str) -> None:
        super().__init__(appendonly="yes", appendfsync=appendfsync)
        self._slow = [
            f"LD_PRELOAD={compiled('slowdisk', self.folder)}",
            f"SLOWDISK={SYNC[appendfsync]}",
        ]

    def command(self) -> Sequence[str]:
        return ["env", *self._slow, *super().command()]

    def owes_its_disk(self) -> bool:
        """Has it answered what it has not written?"""
        with self.client() as client:
            state: dict[str, Any] = client.info("persistence")
        return bool(state["aof_pending_bio_fsync"] and state["aof_buffer_length"])


def _one_crash(appendfsync: str) -> Counter[str]:
    told: dict[str, str] = {}
    owes = False
    with _SlowValkey(appendfsync) as server:
        server.start()
        with Receiver.open(server.url, policy=POLICY) as receiver:
            until = time.monotonic() + 20
            while len(told) < FEW or (appendfsync == "everysec" and not owes):
                key = f"key-{len(told)}"
                told[key] = receiver.process(key, str, f"{key} first").value
                owes = server.owes_its_disk()
                if time.monotonic() > until:
                    break
        server.kill()
        server.start()
        with Receiver.open(server.url, policy=POLICY) as receiver:
            again = {key: receiver.process(key, str, "run again").value for key in told}
    lost = sum(again[key] != value for key, value in told.items())
    return Counter({"killed while a write waited": owes, "acknowledged": len(told), "lost": lost})


@trial("slow disk", "C6", "kills", ("valkey",))
def slow_disk(t: Trial) -> None:
    """The server is killed while a slow sync of its file is running. This counts what is lost with
    appendfsync everysec, and with always."""
    for appendfsync in SYNC:
        found: Counter[str] = Counter()
        for _ in range(t.size(1, 10)):
            found += _one_crash(appendfsync)
            t.tried += 1
        for what, count in found.items():
            t.count(f"{appendfsync}: {what}", count)
        if appendfsync == "always":
            t.expect(not found["lost"], "lost in spite of appendfsync always")
        else:
            t.expect(found["killed while a write waited"], "no write waited: this shows nothing")
    t.notes.append(
        "with appendfsync everysec a crash of the server loses what it answered while its disk was busy"
    )
