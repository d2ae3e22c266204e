"""A process that forks with a receiver open. Run as a script by the tests: ``forks.py CASE URL``.

Parent and child both go on; each tells what it met. A claim stays with the process that made it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from twicesafe import AsyncReceiver, Policy, Receiver
from twicesafe._values.keys import new_owner

POLICY = Policy(in_flight="reject", lease=30)


def in_child(act: Callable[[], Any]) -> Any:
    """Fork; what the child's act returned, or the name of what it raised."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, json.dumps(told(act)).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        text = answer.read()
    os.waitpid(pid, 0)
    return json.loads(text)


def told(act: Callable[[], Any]) -> Any:
    try:
        return act()
    except BaseException as error:
        return type(error).__name__


def idle(url: str) -> dict[str, Any]:
    receiver = Receiver.open(url, policy=POLICY)
    receiver.process("before", str, "recorded before the fork")

    def go_on() -> list[Any]:
        return [
            receiver.process("before", str, "run again").value,
            receiver.process("child", str, "child's").value,
            new_owner().hex(),
        ]

    child = in_child(go_on)
    return {
        "child": child[:2],
        "same owner": child[2][:20] == new_owner().hex()[:20],
        "parent": receiver.process("parent", str, "parent's").value,
        "child's, seen by parent": receiver.process("child", str, "run again").value,
    }


def in_handler(url: str) -> dict[str, Any]:
    receiver = Receiver.open(url, policy=POLICY)
    read, write = os.pipe()

    def handler() -> str:
        pid = os.fork()
        if pid == 0:
            return "child's"
        os.waitpid(pid, 0)
        return "parent's"

    parent = os.getpid()
    value = told(lambda: receiver.process("k", handler).value)
    if os.getpid() != parent:
        again = told(lambda: receiver.process("k", str, "run again").value)
        os.write(write, json.dumps([value, again]).encode())
        os._exit(0)
    return {"child": json.loads(os.read(read, 1000)), "parent": value}


def by_hand(url: str) -> dict[str, Any]:
    receiver = Receiver.open(url, policy=POLICY)
    with receiver.claim("k") as claim:

        def complete() -> None:
            claim.complete("child's")

        def leave() -> None:
            claim.__exit__(None, None, None)

        def leave_by_exit() -> None:
            error = SystemExit()
            claim.__exit__(SystemExit, error, None)

        child = [in_child(complete), in_child(leave), in_child(leave_by_exit)]
        duplicate = in_child(lambda: receiver.process("k", str, "child's").value)
        claim.complete("parent's")
    return {"child": child, "duplicate": duplicate, "parent": claim.result}


def event_loop(url: str) -> dict[str, Any]:
    receiver = AsyncReceiver.open(url, policy=POLICY)

    async def say(word: str) -> str:
        return word

    async def process(key: str, word: str) -> str:
        return (await receiver.process(key, say, word)).value

    asyncio.run(process("before", "recorded before the fork"))
    child = in_child(
        lambda: [asyncio.run(process("before", "again")), asyncio.run(process("child", "child's"))]
    )
    return {"child": child, "parent": asyncio.run(process("child", "again"))}


if __name__ == "__main__":
    case = {"idle": idle, "in_handler": in_handler, "by_hand": by_hand, "event_loop": event_loop}
    print(json.dumps(case[sys.argv[1]](sys.argv[2])))
