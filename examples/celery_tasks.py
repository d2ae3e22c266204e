"""Celery tasks that run once per id: a worker, a task that is delivered twice, and one that retries."""

from celery import Celery
from celery.contrib.testing.worker import start_worker

from twicesafe import Receiver
from twicesafe.integrations.celery import idempotent_task

receiver = Receiver.open("memory://")  # in real life one that all workers share: redis://…
app = Celery("shop", broker="memory://", backend="cache+memory://")
app.conf.broker_transport_options = {"polling_interval": 0.01}
app.Task = idempotent_task(receiver)
charged: list[str] = []
tries: list[int] = []


@app.task
def charge(order: str) -> str:
    charged.append(order)
    return f"charged {order}"


@app.task(bind=True)
def ask_bank(self) -> str:
    tries.append(self.request.retries)
    if len(tries) < 3:
        raise self.retry(countdown=0)  # releases the claim
    return "open"


with start_worker(app, pool="solo", perform_ping_check=False, loglevel="ERROR"):
    first = charge.apply_async(("o-1",), task_id="task-1")
    again = charge.apply_async(("o-1",), task_id="task-1")  # as after a visibility time-out
    other = charge.apply_async(("o-2",), task_id="task-2")
    print(first.get(20), "|", again.get(20), "|", other.get(20))
    print("the bank is", ask_bank.delay().get(20), "after", len(tries), "tries")

print("charged:", charged)
assert charged == ["o-1", "o-2"]
assert tries == [0, 1, 2]
receiver.close()
