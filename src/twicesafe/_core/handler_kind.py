"""Which kind of function a handler is, and the refusals of kinds whose work cannot be recorded here.

Calling a generator function or a coroutine function runs none of its code. So the work must not
count as done when the call returns.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import CoroutineType
from typing import Any

from ..errors import UsageError
from .handler_call import name_of

__all__ = [
    "expect_callable",
    "expect_done",
    "problem_of",
    "refuse_async",
    "refuse_coroutine",
    "refuse_generator",
]


def problem_of(handler: Callable[..., Any]) -> str:
    """Empty, 'async' or 'generator'."""
    inner: Any = handler
    while isinstance(inner, functools.partial):
        inner = inner.func
    if not inspect.isroutine(inner) and not inspect.isclass(inner):
        inner = getattr(inner, "__call__", inner)  # noqa: B004 - the method, not whether it is there
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        return "generator"
    return "async" if inspect.iscoroutinefunction(inner) else ""


def expect_callable(handler: object, call: str = "process(key") -> None:
    """Refuse anything but a function: most likely the handler was called where it should be passed.

    ``call`` is how the call begins: "steps.run('charge'".
    """
    if callable(handler):
        return
    if inspect.iscoroutine(handler):
        handler.close()  # so that it never starts
    raise UsageError(
        f"the handler must be a function, not {type(handler).__name__}: pass the function and its "
        f"arguments, {call}, charge, order), not {call}, charge(order))"
    )


def expect_done(value: object, what: str) -> None:
    """Refuse what a function of the user returned if its work has not run yet."""
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()  # so that it never starts
        raise UsageError(f"{what} is async, and nothing awaits it here: use a plain function")
    if inspect.isgenerator(value) or inspect.isasyncgen(value):
        raise UsageError(f"{what} is a generator, which has not run: use a plain function")


def refuse_coroutine(value: CoroutineType[Any, Any, Any]) -> UsageError:
    """A handler that returned a coroutine has done nothing yet: the coroutine has not started. A
    generator is different: the function that returned it has run, so the record must say so, without
    a result."""
    value.close()  # so that it never starts
    return UsageError(
        "the handler returned a coroutine, whose work has not run: await it in the handler; async "
        "functions need AsyncReceiver or AsyncInbox"
    )


def refuse_generator(handler: Any) -> UsageError:
    return UsageError(
        f"{name_of(handler)} is a generator: its work would happen after it returned, so it cannot "
        "be recorded; collect the items and return them"
    )


def refuse_async(handler: Any) -> UsageError:
    return UsageError(
        f"{name_of(handler)} is an async function: use AsyncReceiver, AsyncInbox or AsyncConsumer (same "
        "methods, with await)"
    )
