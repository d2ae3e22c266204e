"""Taskiq: a function wrapper that lets a task run once per id. A middleware of Taskiq cannot return a result.

    @broker.task
    @idempotent_task(receiver)                       # an AsyncReceiver; below @broker.task
    async def charge(order: str) -> str: ...

The key is the task id, which redeliveries and Taskiq's retries keep, in a scope with the task's name.
Verdicts become what Taskiq does:

    ack            the task returns the recorded result
    retry          a failed attempt raises what the task raised: Taskiq's retry middleware decides.
                   Work in progress elsewhere (after the policy's ``wait``), or a store that is down:
                   the message is requeued, and no result is set
    dead_letter    the error is raised: it is the result of the task
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from .._values.drivers import driver
from .._values.keys import Key, KeyLike
from ..errors import ConfigurationError
from ..receiver import AsyncReceiver
from ..receiver._base import check_key, check_receiver
from ..receiver._queue_delivery import (
    attempt_error,
    delivery,
    pause_of,
    policy_for_redelivery,
    queue_decides,
    result_of,
    verdict_on_async,
)

with driver("taskiq"):
    from taskiq import Context, TaskiqDepends
    from taskiq_dependencies import DependencyGraph

__all__ = ["idempotent_task"]

T = TypeVar("T")

CONTEXT: Final = "taskiq_context"
"""The parameter by which Taskiq passes the message to the wrapper; the task does not get it."""


def idempotent_task(
    receiver: AsyncReceiver, *, key: Callable[..., KeyLike] | None = None
) -> Callable[[Callable[..., Awaitable[T]]], Callable[..., Awaitable[T]]]:
    """Let an async task run once per task id, or per what ``key`` makes of its arguments.

    The arguments are compared if the receiver has ``fingerprint=True``. ``key`` and this comparison get
    the arguments that were sent, without Taskiq's dependencies.
    """
    check_receiver(receiver, AsyncReceiver, "idempotent_task")
    check_key(key)
    policy_for_redelivery(receiver.policy, "task queues")

    def decorate(function: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
        if not inspect.iscoroutinefunction(function):
            raise ConfigurationError(
                f"idempotent_task needs an async function, directly below @broker.task, and not "
                f"{function!r}; call blocking work by asyncio.to_thread"
            )

        bare = _without_dependencies(function)

        @functools.wraps(function)
        async def run(*args: Any, **kwargs: Any) -> Any:
            context = kwargs.pop(CONTEXT, None)
            if not isinstance(context, Context):
                return await function(*args, **kwargs)  # called as a function, not by a worker
            message = context.message
            owner = receiver.options(scope=(*receiver.scope, message.task_name))

            sent = {name: value for name, value in kwargs.items() if name in message.kwargs}

            def make() -> Any:
                given = Key(message.task_id) if key is None else key(*args, **sent)
                work = functools.partial(function, *args, **kwargs)
                return delivery(owner, given, queue_decides, message, bare, args, sent, work)

            verdict = await verdict_on_async(owner, make)
            if verdict.action == "ack":
                return result_of(verdict)
            error = attempt_error(verdict)
            if error is not None:
                raise error
            await asyncio.sleep(pause_of(verdict))
            return await context.requeue()  # it raises: there is no result yet

        wrapped: Callable[..., Awaitable[T]] = _with_context(run, function)
        return wrapped

    return decorate


def _without_dependencies(function: Callable[..., Any]) -> Callable[..., Any]:
    """Stands for the function where its arguments are compared. Dependencies are no part of the message:
    Taskiq makes new ones for every delivery."""

    @functools.wraps(function)
    def bare(*args: Any, **kwargs: Any) -> None: ...

    dependencies = {
        one.param_name
        for one in DependencyGraph(function).ordered_deps
        if one.parent is not None and one.parent.dependency is function
    }
    plain = inspect.signature(function)
    sent = [one for one in plain.parameters.values() if one.name not in dependencies]
    bare.__signature__ = plain.replace(parameters=sent)  # type: ignore[attr-defined]
    return bare


def _with_context(run: Any, function: Callable[..., Any]) -> Any:
    """Add the parameter that Taskiq fills."""
    plain = inspect.signature(function, eval_str=True)
    parameters = list(plain.parameters.values())
    rest = [p for p in parameters if p.kind is p.VAR_KEYWORD]
    added = inspect.Parameter(
        CONTEXT, inspect.Parameter.KEYWORD_ONLY, default=TaskiqDepends(), annotation=Context
    )
    run.__signature__ = plain.replace(
        parameters=[*parameters[: len(parameters) - len(rest)], added, *rest]
    )
    run.__annotations__ = {**inspect.get_annotations(function, eval_str=True), CONTEXT: Context}
    return run
