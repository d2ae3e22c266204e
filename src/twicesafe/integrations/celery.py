"""Celery: a task class whose tasks run once per id, even if the broker delivers one again.

    app = Celery("shop", broker="redis://…", task_cls=idempotent_task(receiver))     # all tasks

    @app.task(base=idempotent_task(receiver, key=lambda order: order["id"]))          # or one of them
    def charge(order): ...

The key is the task id, which redeliveries and ``self.retry()`` keep, in a scope with the task's
name. A task that replaces itself has a key for each replacement. Verdicts become what Celery does:

    ack            the task returns the recorded result
    retry          a failed attempt raises what the task raised, and Celery's own retries decide.
                   Work in progress elsewhere, or a store that is down: the task is sent again with a
                   countdown, and Celery's retries are not used up
    dead_letter    the error is raised: the task has failed

``self.retry()`` and ``autoretry_for`` release the claim and count as an attempt. With `Ignore` the work is done.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any, Final

from .._core.consuming.verdicts import Verdict
from .._values.drivers import driver
from .._values.keys import Key, KeyLike
from .._values.settings import seconds
from ..receiver import Receiver
from ..receiver._base import check_key, check_receiver
from ..receiver._queue_delivery import (
    attempt_error,
    delivery,
    policy_for_redelivery,
    queue_decides,
    result_of,
    verdict_on,
)

with driver("celery"):
    from celery import Celery, Task
    from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded

__all__ = ["idempotent_task", "settings_problems"]

_log = logging.getLogger("twicesafe")

_BEGUN: Final = "twicesafe_begun"
"""Set on a request whose task runs under its claim."""

IGNORED: Final = "the task raised Ignore"
"""Recorded as the result when a task raises `Ignore`, or replaces itself. A repeat raises it again."""

_LIMITS: Final = (SoftTimeLimitExceeded,)
"""With ``takeover="hold"`` the outcome of a task that raises this is unknown."""

VISIBILITY: Final = 3600
"""The visibility time-out of Celery's Redis transport, in seconds, if none is set."""


def idempotent_task(receiver: Receiver, *, key: Callable[..., KeyLike] | None = None) -> type[Any]:
    """A base class for tasks, for ``base=`` or ``task_cls=``. It acknowledges late by default.

    ``key`` is a function of the task's arguments; by default the task id is the key. The arguments
    are compared if the receiver has ``fingerprint=True``.
    """
    check_receiver(receiver, Receiver, "idempotent_task")
    check_key(key)
    home = receiver.options(policy=policy_for_redelivery(receiver.policy, "task queues"))

    class IdempotentTask(Task):  # type: ignore[misc]
        """A task that runs once per key."""

        abstract = True
        acks_late = True
        reject_on_worker_lost = True

        @classmethod
        def on_bound(cls, app: Celery) -> None:
            if _is_celerys_own(cls) or "is_checked" in cls.__dict__:
                return
            cls.is_checked = True
            for problem in settings_problems(cls, app, home):
                _log.warning("task %s: %s", cls.name, problem)

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            request = self.request
            id_ = request.id
            # None: called as a function, not by a worker. Begun: a task that calls itself.
            if id_ is None or _BEGUN in request.__dict__ or _is_celerys_own(self):
                return super().__call__(*args, **kwargs)
            setattr(request, _BEGUN, True)

            def make() -> Any:
                given = _key_of(request) if key is None else key(*args, **kwargs)
                owner = home.options(scope=(*home.scope, self.name))
                call = (
                    self.run,
                    args,
                    kwargs,
                    functools.partial(_until_ignored, self, args, kwargs),
                )
                return delivery(owner, given, queue_decides, self, *call, cut_off=_LIMITS)

            return _act(self, verdict_on(home, make))

    return IdempotentTask


def _is_celerys_own(task: Any) -> bool:
    """A task of Celery itself that ``task_cls`` covers: one polls by retries without an end."""
    return str(task.name).startswith("celery.")


def _key_of(request: Any) -> Key:
    """The task id. A task that replaces itself (`Task.replace`) keeps its id; each replacement is new work."""
    nesting = getattr(request, "replaced_task_nesting", 0)
    return Key(request.id, scope=(f"replacement {nesting}",) if nesting else ())


def _until_ignored(task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return task.run(*args, **kwargs)
    except Ignore:
        return IGNORED


def _act(task: Any, verdict: Verdict[Any]) -> Any:
    if verdict.action == "ack":
        result = result_of(verdict)
        if isinstance(result, str) and result == IGNORED:
            raise Ignore
        return result
    error = attempt_error(verdict)
    if error is None:
        assert verdict.error is not None
        raise _later(task, verdict.retry_after or 0, verdict.error)
    raise error


def _later(task: Any, wait: float, error: Exception) -> Any:
    """Send the task again, under its id and with its number of retries; the exception that says so."""
    request = task.request
    if request.is_eager:
        return error  # there is no queue that could keep it
    again = task.signature_from_request(request, countdown=wait, retries=request.retries)
    try:
        again.apply_async()
    except Exception as failure:
        return Reject(failure, requeue=True)
    return Retry(exc=error, when=wait, sig=again)


def settings_problems(task: Any, app: Celery, receiver: Receiver) -> Iterator[str]:
    """What will go wrong with these settings, each with the setting to change."""
    policy = receiver.policy
    if not task.acks_late:
        yield (
            "acks_late is off, so a worker that dies loses the task and no redelivery can finish "
            "it; set acks_late=True"
        )
    elif not task.reject_on_worker_lost:
        yield (
            "reject_on_worker_lost is off, so a killed child process loses the task; set "
            "reject_on_worker_lost=True"
        )
    if task.max_retries is None or task.max_retries >= policy.max_attempts:
        yield (
            f"max_retries={task.max_retries}, but the key is parked after max_attempts="
            f"{policy.max_attempts}, and a retry is an attempt; raise max_attempts of the policy"
        )
    if str(app.conf.broker_url or "").partition(":")[0] in ("redis", "rediss", "sentinel", "sqs"):
        options = app.conf.broker_transport_options
        visibility = float(options.get("visibility_timeout", VISIBILITY))
        if visibility < seconds(policy.lease):
            yield (
                f"visibility_timeout={visibility:g} is shorter than lease={policy.lease:g}: a task is "
                "delivered again while its claim lives, and put off; raise visibility_timeout"
            )
        if visibility >= seconds(policy.retention):
            yield (
                f"visibility_timeout={visibility:g} is not shorter than retention="
                f"{policy.retention:g}: a redelivery after the retention runs again; raise retention"
            )
