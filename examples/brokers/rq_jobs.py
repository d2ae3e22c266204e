"""RQ jobs that run once per id: a worker, and a job that is delivered twice.

python rq_jobs.py      # with a Redis or Valkey at localhost:6379, or at BROKER
"""

import os

from redis import Redis
from rq import Queue, Retry, SimpleWorker

from twicesafe import Receiver
from twicesafe.integrations.rq import idempotent_job

SERVER = os.environ.get("BROKER", "redis://localhost:6379/0")
receiver = Receiver.open(SERVER)
Job = idempotent_job(receiver)  # for the command line: rq worker --job-class rq_jobs.Job


def charge(order: str) -> str:
    print("charging", order, flush=True)
    return f"charged {order}"


if __name__ == "__main__":
    import rq_jobs  # RQ imports the function by its name, so it must not be __main__.charge

    redis = Redis.from_url(SERVER)
    queue = Queue("orders", connection=redis, job_class=Job)
    for _ in range(2):  # as after a requeue, or a producer that enqueues twice
        job = queue.enqueue(rq_jobs.charge, "o-1", job_id="order-o-1", retry=Retry(max=3))
        SimpleWorker([queue], connection=redis, job_class=Job).work(
            burst=True, logging_level="ERROR"
        )
        print(job.return_value(refresh=True))
    redis.close()
    receiver.close()
