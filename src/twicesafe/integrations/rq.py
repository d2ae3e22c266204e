"""RQ: a job class whose jobs run once per id, however often RQ delivers them.

    Job = idempotent_job(receiver)
    queue = Queue("orders", connection=redis, job_class=Job)
    Worker([queue], connection=redis, job_class=Job).work()          # rq worker --job-class shop.Job

The key is the job's id, which retries and ``requeue`` keep, in a scope with the function's name. Each
repetition of RQ's ``Repeat`` has another scope, because it is new work under the same id.
Verdicts become what RQ does:

    ack            the job returns the recorded result
    retry          a failed attempt raises what the function raised, and RQ's own ``Retry`` decides.
                   Work in progress elsewhere, or a store that is down: the job goes back to its queue,
                   and its retries are not used up
    dead_letter    the error is raised, and RQ does not retry: the job has failed

A function that returns RQ's ``Retry`` releases the claim and counts as an attempt.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from .._core.consuming.verdicts import Verdict
from .._values.drivers import driver
from .._values.keys import Key, KeyLike
from ..receiver import Receiver
from ..receiver._base import check_key, check_receiver
from ..receiver._queue_delivery import (
    attempt_error,
    delivery,
    pause_of,
    policy_for_redelivery,
    queue_decides,
    result_of,
    verdict_on,
)

with driver("rq"):
    from rq import Retry
    from rq.job import Job
    from rq.timeouts import BaseTimeoutException

__all__ = ["idempotent_job"]

ALWAYS: Final = 1_000_000_000
"""A job that could not run now goes back to its queue, however often that was."""


_LIMITS: Final = (BaseTimeoutException,)
"""With ``takeover="hold"`` the outcome of a job that raises this is unknown."""


class _Again(Exception):  # noqa: N818 - a wish of the function, not an error
    """The function returned RQ's ``Retry``."""

    def __init__(self, retry: Retry) -> None:
        super().__init__("the job asked RQ for a retry")
        self.retry = retry


def idempotent_job(receiver: Receiver, *, key: Callable[..., KeyLike] | None = None) -> type[Job]:
    """A class for ``job_class=`` of a queue and its workers.

    ``key`` is a function of the job's arguments; by default the job's id is the key. The arguments
    are compared if the receiver has ``fingerprint=True``.
    """
    check_receiver(receiver, Receiver, "idempotent_job")
    check_key(key)
    home = receiver.options(policy=policy_for_redelivery(receiver.policy, "task queues"))

    class IdempotentJob(Job):
        """A job that runs once per key."""

        def perform(self) -> Any:
            perform = super().perform

            def run() -> Any:
                result = perform()
                if isinstance(result, Retry):
                    raise _Again(result)
                return result

            def make() -> Any:
                args, kwargs = tuple(self.args), dict(self.kwargs)
                scope = (*home.scope, str(self.func_name))
                if key is None and self.repeats_left is not None:
                    scope = (*scope, f"repeats_left={self.repeats_left}")
                given = Key(self.id) if key is None else key(*args, **kwargs)
                owner = home.options(scope=scope)
                work = (self.func, args, kwargs, run)
                return delivery(owner, given, queue_decides, self, *work, cut_off=_LIMITS)

            return _act(self, verdict_on(home, make))

    return IdempotentJob


def _act(job: Job, verdict: Verdict[Any]) -> Any:
    """What `perform` returns to RQ's worker, or raises there."""
    if verdict.action == "ack":
        return result_of(verdict)
    error = attempt_error(verdict)
    if error is None:
        time.sleep(pause_of(verdict))  # a delay of RQ needs a scheduler
        # RQ adds 1, and compares the sum with `max` of a Retry that the function returns.
        job.number_of_retries = (job.number_of_retries or 0) - 1
        return Retry(max=ALWAYS)
    if isinstance(error, _Again):
        return error.retry
    if verdict.action == "dead_letter":
        job.retries_left = 0  # no retry can help
    raise error
