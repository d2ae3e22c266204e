"""Failovers under load: two regions, deliveries that never stop, copies that lag, zombies of old epochs.

    python -m tests.regions.failovers postgres postgres --failovers 200

Each round delivers messages to both regions while the copies lag, fails over in the middle, delivers every
message again, settles, and switches on. What must be true: a key whose handler had an effect in more than
one epoch is recorded as in doubt, or was named by `settle`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.regions.worlds import Places
from twicesafe import HeldError, Key, NotHomeError, Policy, TwicesafeError
from twicesafe.regions import Regions

__all__ = ["Storm", "main"]

LEASE, SKEW = 0.1, 0.05
POLICY = Policy(lease=30, wait=5)


class Storm:
    """`unknown`: the setting under test. Effects are counted by key and by region."""

    def __init__(
        self, places: Places, kinds: tuple[str, str], unknown: Any, keys: int = 12
    ) -> None:
        urls = dict(zip(("eu", "us"), map(places.url, kinds), strict=True))
        self.regions = Regions.open(
            urls, register=places.url("memory"), unknown=unknown, lease=LEASE, skew=SKEW, overlap=5
        )
        places.callback(self.regions.close)
        self.regions.create()
        self.keys = keys
        self.effects: defaultdict[str, Counter[int]] = defaultdict(Counter)
        """Key → how often its handler ran, by epoch."""
        self.named: set[str] = set()
        self.learned = self.held = self.refused = self.failovers = 0
        self.seconds: list[float] = []
        self._lock = threading.Lock()
        self.receivers = {name: self.regions.receiver(name, policy=POLICY) for name in ("eu", "us")}

    def _deliver(self, region: str, key: Key, epoch: int) -> None:
        def work(value: str) -> str:
            with self._lock:
                self.effects[value][epoch] += 1
            return f"{region} {value}"

        try:
            self.receivers[region].process(key, work, key.value)
        except HeldError:
            self.held += 1
        except NotHomeError:
            self.refused += 1
        except TwicesafeError as error:  # any other says something that we did not expect
            raise AssertionError(f"{key.value}: {error!r}") from error

    def round(self, number: int) -> None:
        """A failover in the middle of deliveries, to the region that does not serve; then settled."""
        [status] = self.regions.status()
        old = status.epoch.region
        new = "us" if old == "eu" else "eu"
        epoch = status.epoch.number
        keys = [Key.random() for _ in range(self.keys)]
        with ThreadPoolExecutor(4) as pool:
            for key in keys[: self.keys // 3]:
                self._deliver(old, key, epoch)
            self.regions.follower(old, new).once()
            some = [pool.submit(self._deliver, old, key, epoch) for key in keys[: -self.keys // 4]]
            began = time.monotonic()
            self.regions.fail_over("eu", to=new)
            self.seconds.append(time.monotonic() - began)
            self.failovers += 1
            # Zombies of the old region, and every message again in the new one.
            some += [pool.submit(self._deliver, old, key, epoch) for key in keys]
            some += [pool.submit(self._deliver, new, key, epoch + 1) for key in keys]
            for each in some:
                each.result()
        report = self.regions.settle("eu")
        self.learned += report.learned
        self.named |= set(report.twice)
        assert report.twice_count == len(report.twice)
        for key in keys:
            self._deliver(new, key, epoch + 1)

    def check(self) -> dict[str, Any]:
        """Every key that was worked on in two epochs is counted; the figures."""
        twice = {key: runs for key, runs in self.effects.items() if sum(runs.values()) > 1}
        doubts = [
            each for name in ("eu", "us") for each in self.regions.in_doubt(name, limit=100_000)
        ]
        counted = {each.value for each in doubts} | {
            key for key in twice if Key(key).id[:4].hex() in self.named
        }
        missed = {key: dict(runs) for key, runs in twice.items() if key not in counted}
        assert not missed, f"worked on twice and not counted: {missed}"
        return {
            "failovers": self.failovers,
            "keys": len(self.effects),
            "worked on twice, counted": len(twice),
            "in doubt": len({each.value for each in doubts}),
            "learned when settled": self.learned,
            "answers held": self.held,
            "refused, not home": self.refused,
            "slowest failover, s": round(max(self.seconds), 3),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs=2)
    parser.add_argument("--failovers", type=int, default=200)
    parser.add_argument("--unknown", choices=("hold", "run"), default="hold")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Places(Path(folder)) as places:
        storm = Storm(places, tuple(asked.kinds), asked.unknown)
        for number in range(asked.failovers):
            storm.round(number)
        print(json.dumps(storm.check()))


if __name__ == "__main__":
    main()
