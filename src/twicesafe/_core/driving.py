"""The two drivers that run every program and every flow: `drive` (blocking) and `drive_async`.

`perform` executes one command. Its exceptions are thrown into the generator, which may handle them.
Anything that is not an `Exception` (a kill, a cancellation, an interrupt) propagates to the caller,
and the generator is closed at once. It does not stay open until the error's traceback is freed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from types import CoroutineType
from typing import Any, TypeVar

__all__ = ["drive", "drive_async"]

T = TypeVar("T")


def drive(
    steps: Generator[Any, Any, T],
    perform: Callable[[Any], Any],
    explain: Callable[[Exception], Exception] | None = None,
) -> T:
    """`explain` may replace an exception of `perform` before it is thrown into the generator."""
    try:
        command = steps.send(None)
        while True:
            try:
                reply = perform(command)
            except Exception as error:
                command = steps.throw(error if explain is None else explain(error))
            else:
                command = steps.send(reply)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    finally:
        steps.close()


async def drive_async(
    steps: Generator[Any, Any, T],
    perform: Callable[[Any], Any],
    explain: Callable[[Exception], Exception] | None = None,
) -> T:
    """`perform` returns the answer, or a coroutine to await."""
    try:
        command = steps.send(None)
        while True:
            try:
                reply = perform(command)
                if type(reply) is CoroutineType:
                    reply = await reply
            except Exception as error:
                command = steps.throw(error if explain is None else explain(error))
            else:
                command = steps.send(reply)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    finally:
        steps.close()
