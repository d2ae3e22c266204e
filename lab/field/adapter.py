"""One delivery through one way of the adapter matrix; run as a script by the trial, and killed by it.

adapter.py URL WAY NUMBER PHASE    says each phase that it reached, and waits for its death at PHASE
"""

from __future__ import annotations

import faulthandler
import os
import sys
import traceback

from tests.transactions import ways, wrapped
from tests.transactions.kinds import open_door
from tests.transactions.trying import EFFECT
from twicesafe import AsyncInbox, Inbox

PHASES = ("begun", "recorded", "released", "applied", "committed")


def deliver(url: str, name: str, number: str, last: str) -> None:
    def reached(phase: str) -> None:
        print(phase, flush=True)
        if phase == last:
            sys.stdin.read()

    way = next(way for way in ways.ALL + wrapped.ALL if way.id == name)
    door = open_door(way.kind, url, **way.options)
    inbox = AsyncInbox.open(url) if door.is_async else Inbox.open(url)
    release = way.begin(door)
    reached("begun")
    is_new = door.end(inbox.accept(door.connection, f"m-{number}"))
    reached("recorded")
    if release is not None:
        release()
    reached("released")
    if is_new:
        door.sql(EFFECT.format(number))
    reached("applied")
    door.commit()
    reached("committed")
    door.end(inbox.close())
    door.close()


if __name__ == "__main__":
    faulthandler.dump_traceback_later(60, exit=True)  # a worker that hangs says where
    try:
        deliver(*sys.argv[1:])
    except BaseException:
        traceback.print_exc()
        os._exit(1)  # threads of a driver would keep it alive
