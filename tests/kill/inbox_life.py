"""A process with an inbox and an outbox open, that forks or is terminated: ``inbox_life.py CASE URL``.

fork       parent and child go on, each on its own connection; both report what they met
sigterm    says "at it" in mid-work, with an effect and a message written and not committed
"""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.kill.forks import in_child
from tests.kill.inbox_storm import connect, run
from twicesafe import Inbox, Outbox


class Life:
    def __init__(self, url: str) -> None:
        self.url = url
        self.inbox, self.outbox = Inbox.open(url), Outbox.open(url)

    def deliver(self, key: str, value: str) -> str:
        """One message, in its own transaction, on its own connection."""
        connection = connect(self.url)
        told: str = self.inbox.process(connection, key, self.credit, connection, value).value
        connection.commit()
        connection.close()
        return told

    def credit(self, connection: Any, value: str) -> str:
        run(connection, f"INSERT INTO credits VALUES ('{value}')")
        self.outbox.add(connection, topic="credits", body=value)
        return value

    def fail(self, key: str) -> int:
        """The attempt that failed, as it was counted outside of its transaction."""
        connection = connect(self.url)
        try:
            self.inbox.process(connection, key, lambda: 1 // 0)
        except ZeroDivisionError:
            connection.rollback()
        connection.close()
        self.inbox._runtime.deferred.wait(self.inbox.key(key).id, 120)
        connection = connect(self.url)
        (found,) = run(connection, "SELECT attempt FROM twicesafe_keys WHERE state = 3")
        connection.close()
        return int(found[0])


def fork(life: Life) -> dict[str, Any]:
    life.deliver("before", "before the fork")
    failed = life.fail("failing")  # a thread of ours has written it down
    child = in_child(
        lambda: [
            life.deliver("before", "again"),
            life.deliver("child", "of the child"),
            life.fail("failing"),
        ]
    )
    return {
        "child": child,
        "parent": [life.deliver("parent", "of the parent"), life.deliver("child", "again")],
        "failed": [failed, life.fail("failing")],
        "messages": life.outbox.depth().pending,
    }


def sigterm(life: Life, polite: bool) -> None:
    if polite:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    connection = connect(life.url)

    def work() -> None:
        life.credit(connection, "half")
        print("at it", flush=True)
        while True:  # a signal right before a long sleep would be handled after it
            time.sleep(0.05)

    try:
        life.inbox.process(connection, "m-1", work)
        connection.commit()
    finally:
        connection.close()


if __name__ == "__main__":
    case, url = sys.argv[1:3]
    if case == "fork":
        print(json.dumps(fork(Life(url))))
    else:
        sigterm(Life(url), case == "polite")
