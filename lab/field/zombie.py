"""A worker that is stopped in mid-work and wakes up too late. Run as a script by the trial.

python -m lab.field.zombie URL threads|tasks LEASE
← KEY
→ in                      its handler runs; now it may be stopped
→ {"told": when it knew, "acks": what the store said to it, "end": how its exchange ended}
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from typing import Any

from twicesafe import AsyncReceiver, Policy, Receiver, current_claim
from twicesafe._core.protocol import Abandon, Complete, Fail, Renew

TIME_LIMIT = 10.0
HOUR = 3_600_000


def last_words() -> list[Any]:
    """What a zombie would still like to say to the store, in its own name."""
    claim = current_claim()
    assert claim is not None
    id_, owner, fence = claim.key.id, claim.owner, claim.fence
    return [
        Renew(id_, owner, fence, HOUR),
        Fail(id_, owner, fence, 0, 5, HOUR),
        Abandon(id_, owner, HOUR),
        Complete(id_, owner, fence, HOUR, b"j'zombie'"),
    ]


def is_lost() -> bool:
    claim = current_claim()
    assert claim is not None
    return claim.lost


def say(what: Any) -> None:
    print(what if isinstance(what, str) else json.dumps(what), flush=True)


def threads(url: str, policy: Policy) -> None:
    with Receiver.open(url, policy=policy) as receiver:
        for line in sys.stdin:
            found: dict[str, Any] = {"told": None, "acks": []}

            def handler(found: dict[str, Any] = found) -> str:
                say("in")
                until = time.monotonic() + TIME_LIMIT
                while not is_lost() and time.monotonic() < until:
                    time.sleep(0.005)
                found["told"] = time.monotonic() if is_lost() else None
                found["acks"] = [receiver.store.perform(ask).name for ask in last_words()]
                return "zombie"

            try:
                found["end"] = receiver.process(line.strip(), handler).value
            except Exception as error:
                found["end"] = type(error).__name__
            say(found)


async def tasks(url: str, policy: Policy) -> None:
    async with AsyncReceiver.open(url, policy=policy) as receiver:
        while line := await asyncio.to_thread(sys.stdin.readline):
            found: dict[str, Any] = {"told": None, "acks": []}

            async def handler(found: dict[str, Any] = found) -> str:
                say("in")
                until = time.monotonic() + TIME_LIMIT
                while not is_lost() and time.monotonic() < until:  # noqa: ASYNC110 - no event for it
                    await asyncio.sleep(0.005)
                found["told"] = time.monotonic() if is_lost() else None
                for ask in last_words():
                    found["acks"].append((await receiver.store.perform(ask)).name)
                return "zombie"

            try:
                found["end"] = (await receiver.process(line.strip(), handler)).value
            except Exception as error:
                found["end"] = type(error).__name__
            say(found)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the parent process may ignore it
    url, kind, lease = sys.argv[1:]
    policy = Policy(lease=float(lease))
    if kind == "threads":
        threads(url, policy)
    else:
        asyncio.run(tasks(url, policy))
