"""The tasks of a worker process that a test kills. Its addresses come from the environment."""

from __future__ import annotations

import os
import signal

from celery import Celery

from twicesafe import Policy, Receiver, current_claim
from twicesafe.integrations.celery import idempotent_task

receiver = Receiver.open(os.environ["STORE"], policy=Policy(lease=0.5))
app = Celery("shop", broker=os.environ["BROKER"], task_cls=idempotent_task(receiver))
app.conf.update(
    worker_lost_wait=0.1,  # seconds until a dead child's task counts as lost
    result_backend=os.environ["BROKER"],
    broker_transport_options={"global_keyprefix": os.environ["PREFIX"]},
    result_backend_transport_options={"global_keyprefix": os.environ["PREFIX"]},
)


@app.task(name="fatal")
def fatal() -> list[object]:
    claim = current_claim()
    assert claim is not None
    if claim.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return [claim.attempt, str(claim.cause)]
