"""The two drivers that run every program and every flow, one per colour.

`perform` does one command. Its exceptions are thrown into the generator, which may have an
answer to them; anything that is not an `Exception` (a kill, a cancellation, an interrupt) goes
straight up, and the generator is dropped where it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from types import CoroutineType
from typing import Any, TypeVar

__all__ = ["drive", "drive_async"]

T = TypeVar("T")


def drive(steps: Generator[Any, Any, T], perform: Callable[[Any], Any]) -> T:
    try:
        command = steps.send(None)
        while True:
            try:
                reply = perform(command)
            except Exception as error:
                command = steps.throw(error)
            else:
                command = steps.send(reply)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def drive_async(steps: Generator[Any, Any, T], perform: Callable[[Any], Any]) -> T:
    """`perform` answers at once, or with a coroutine to await."""
    try:
        command = steps.send(None)
        while True:
            try:
                reply = perform(command)
                if type(reply) is CoroutineType:
                    reply = await reply
            except Exception as error:
                command = steps.throw(error)
            else:
                command = steps.send(reply)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
