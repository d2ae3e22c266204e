"""Takes the pictures of the dashboard: ``python docs/photograph.py``; it needs Chromium (``./dev servers``).

A shop's day is played with a clock of our own: first deliveries, duplicates of all ages, failures, a takeover,
held and parked keys, an outbox with a parked lane, operators. Then a browser looks at every page, light and dark.
"""  # noqa: INP001 - a script beside what it makes

from __future__ import annotations

import bisect
import contextlib
import random
import shutil
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn

from twicesafe import Backoff, Key, Outbox, OutboxRelay, Policy, Receiver, TwicesafeError
from twicesafe._engines.sqlite import SqliteStore
from twicesafe.dashboard import Access, dashboard
from twicesafe.observers import LogObserver
from twicesafe.testing import FakeClock

PICTURES = Path(__file__).parent / "pictures"
PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
DAY = 86400
TENANTS = ("acme", "globex", "initech", "umbrella")


class Shop:
    """One day of deliveries, in a store of its own, with a dashboard on it."""

    def __init__(self, folder: Path) -> None:
        path = self._path = folder / "shop.db"
        self._chance = random.Random(7)  # the same pictures every time
        self.clock = FakeClock(round((time.time() - 26 * 3600) * 1000))
        self.receiver = Receiver(
            SqliteStore(str(path), synchronous="normal", now=self.clock),
            policy=Policy(
                retention=DAY,
                max_attempts=3,
                in_flight="reject",
                backoff=Backoff(first=0.001, jitter=0.0),
            ),
            observers=[LogObserver()],
        )
        # The activity keeps time with the shop, not with this script.
        self.receiver._activity.__init__(self.clock.worker, self.clock)  # type: ignore[union-attr,misc]
        self._done: list[tuple[float, Any]] = []
        self._last = 0
        self._outbox(path)
        self.receiver.store.url = "sqlite:////srv/shop/keys.db"

    def play(self) -> None:
        chance, clock = self._chance, self.clock
        for _ in range(24 * 60):  # a day, minute by minute
            clock.advance(60)
            self._first()
            for _ in range(chance.choice((0, 0, 1))):
                self._duplicate(chance.expovariate(1 / 7000))
        self._late()
        began, end = clock(), time.time() * 1000
        while clock() < end - 90_000:  # the last two hours, in slices
            clock.advance(10)
            busy = 1.0 + 0.6 * ((clock() - began) // 600_000 % 4)
            for _ in range(chance.randrange(round(4 * busy))):
                self._first()
            for _ in range(chance.choice((0, 0, 1, 1, 2))):
                self._duplicate(chance.expovariate(1 / 500))
            if chance.random() < 0.012:
                self._broken()
            self.receiver._activity.course()  # as a live page would ask
        self._trouble()

    def _first(self) -> None:
        self._last += 1
        key = self._key(f"ord-{41000 + self._last}")
        took = self._chance.lognormvariate(-1.6, 0.7)

        def charge() -> dict[str, Any]:
            self.clock.advance(took)
            return {"charge": f"ch_{self._last}", "amount": 4200}

        self.receiver.process(key, charge)
        self._done.append((self.clock.worker(), key))

    def _duplicate(self, age: float) -> None:
        """Of an answer that is about this old."""
        since = self.clock.worker() - min(age, 0.97 * DAY)
        found = bisect.bisect_left(self._done, since, key=lambda one: one[0])
        with contextlib.suppress(TwicesafeError, IndexError):
            self.receiver.process(self._done[found][1], dict)

    def _late(self) -> None:
        """Duplicates that come after the window, and run again."""
        for _, key in self._done[:3]:
            self.receiver.process(key, dict)

    def _broken(self) -> None:
        def charge() -> None:
            self.clock.advance(2)
            raise TimeoutError("the bank did not answer")

        self._last += 1
        key = self._key(f"ord-{41000 + self._last}")
        for _ in range(3 if self._chance.random() < 0.6 else 1):
            self.clock.advance(1)
            with contextlib.suppress(TimeoutError, TwicesafeError):
                self.receiver.process(key, charge)

    def _trouble(self) -> None:
        """What an operator finds in the morning."""
        held = self.receiver.options(policy=Policy(takeover="hold", retention=DAY))
        keys = [self._key(f"ord-5{n}117") for n in range(4)]
        for key in keys:
            with held.claim(key) as claim:
                claim.hold("ConnectionError")
        self.receiver.resolve(keys[0], {"charge": "ch_9"}, by="ana", why="seen at the bank")
        self.receiver.release(keys[1], by="ben", why="not charged: checked with the bank")
        taken = self._key("ord-60001")
        store = SqliteStore(str(self._path), now=self.clock)
        with (
            Receiver(store, observers=[self.receiver._activity]) as slow,  # another worker
            contextlib.suppress(TwicesafeError),
            slow.claim(taken) as claim,
        ):
            self.clock.advance(31)
            with contextlib.suppress(TimeoutError):
                self.receiver.process(taken, self._fail)
            self.clock.advance(4)
            claim.complete({"charge": "too late"})
        self.clock.advance(20)
        self.receiver.process(taken, lambda: {"charge": "ch_60001"})
        self.story = taken

    @staticmethod
    def _fail() -> None:
        raise TimeoutError

    def _key(self, value: str) -> Any:
        return Key(value, scope=(self._chance.choice(TENANTS), "POST /charges"))

    def _outbox(self, path: Path) -> None:
        with Outbox.open(f"sqlite:///{path}") as outbox:
            connection = sqlite3.connect(path)
            with contextlib.closing(connection):
                for n in range(6):
                    with connection:
                        connection.execute("BEGIN")
                        outbox.add(connection, topic="invoices", body={"n": n}, key=f"cust-{n % 2}")

            def refuse(message: Any) -> None:
                raise ValueError("422 Unprocessable: no such customer")

            relay = OutboxRelay(outbox.store, refuse, max_attempts=1)
            relay.drain()

    def app(self, **access: Any) -> Any:
        given = Access(level="all", show_keys=True, user="ana", **access)
        return dashboard(self.receiver, resolve_access=lambda _: given)

    def relays(self) -> None:
        """Two that are alive, and one that is gone."""
        now = self.clock()
        seen = [
            (b"\x8c\x2f", now + 9_000, False),
            (b"\x41\xd0", now + 7_000, True),
            (b"\xb7\x13", now - 840_000, False),
        ]
        with contextlib.closing(sqlite3.connect(self._path)) as connection, connection:
            for number, (name, until, asleep) in enumerate(seen):
                owner = name * 8
                connection.execute(
                    "INSERT INTO twicesafe_outbox_relays VALUES (?, ?, ?)", (owner, until, asleep)
                )
                connection.execute(
                    "UPDATE twicesafe_outbox_slots SET owner = ?, lease_until = ? WHERE slot % 3 = ?",
                    (owner, until, number),
                )


@contextlib.contextmanager
def served(app: Any) -> Iterator[str]:
    server = uvicorn.Server(
        uvicorn.Config(app, port=0, log_level="error", lifespan="off", access_log=False)
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join()


WIDE, PHONE = 1160, 400
PAGES = {
    "dashboard": (WIDE, ""),
    "dashboard-phone": (PHONE, ""),
    "dashboard-keys": (WIDE, "keys?state=held&state=parked"),
    "dashboard-key": (WIDE, "keys/{story}"),
    "dashboard-dry-run": (WIDE, "actions/release?state=held&state=parked"),
    "dashboard-outbox": (WIDE, "outbox"),
    "dashboard-audit": (WIDE, "audit"),
    "dashboard-running": (WIDE, "running"),
}
"""Each picture: how wide the page is, and its path."""
SCHEMES = ("light", "dark")


def names() -> list[str]:
    """The files that this makes."""
    return [f"{name}-{scheme}.png" for name in PAGES for scheme in SCHEMES]


def main(folder: Path = PICTURES) -> None:
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    with tempfile.TemporaryDirectory() as name:
        shop = Shop(Path(name))
        shop.play()
        shop.relays()
        story = shop.receiver.key(shop.story).id.hex()
        with served(shop.app()) as home, sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
            for scheme in SCHEMES:
                for picture, (width, path) in PAGES.items():
                    size = {"width": width, "height": 860 if width == PHONE else 620}
                    page = browser.new_page(viewport=size, color_scheme=scheme)
                    page.goto(home + path.format(story=story))
                    page.screenshot(
                        path=folder / f"{picture}-{scheme}.png", full_page=width == WIDE
                    )
                    page.close()
            browser.close()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
