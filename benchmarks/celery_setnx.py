"""Celery with the deduplication that its users write by hand: SETNX before, SET after, for each task.

It has no lease, no attempts and no fence: a crash in between loses the message. The worker is one process with 100
threads. It acknowledges a task when it has ended (``acks_late``), and has up to 100 of them at a time. Celery has no
Kafka and no NATS; on Redis it uses lists, not streams; for SQS it needs pycurl, which the benchmark does not install.

``python -m benchmarks.celery_setnx BROKER QUEUE COUNT VALKEY`` sends so many tasks, handles them, and prints the seconds
per task as JSON. It is a process of its own because a worker handles signals and ends its process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from typing import Any, Final

from .brokers import BATCH, BODY, Broker

__all__ = ["consumed_by_celery", "runs_on"]

_URLS: Final[dict[str, Any]] = {
    "rabbitmq": lambda server: server.url,
    "valkey": lambda server: f"redis://127.0.0.1:{server.port}/0",
}


def runs_on(broker: Broker) -> bool:
    return broker.engine in _URLS


def consumed_by_celery(broker: Broker, count: int, valkey: str) -> tuple[float, float]:
    """Seconds per task, and those of the processor, from the start of the first to the end of the last."""
    url = _URLS[broker.engine](broker.server)
    queue = f"celery-{broker.queue}"
    words = [sys.executable, "-m", "benchmarks.celery_setnx", url, queue, str(count), valkey]
    said = subprocess.check_output(words, stderr=subprocess.DEVNULL)
    wall, processor = json.loads(said.splitlines()[-1])
    return wall, processor


def main(url: str, queue: str, given: str, valkey: str) -> None:
    import celery
    import redis

    count = left = int(given)
    app = celery.Celery("bench", broker=url)
    app.conf.update(
        task_default_queue=queue,
        task_default_queue_type="quorum",
        task_acks_late=True,
        task_ignore_result=True,
        worker_prefetch_multiplier=1,
        worker_detect_quorum_queues=True,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
    )
    client = redis.Redis.from_url(valkey, max_connections=BATCH)
    lock = threading.Lock()
    began: list[tuple[float, float]] = []

    def now() -> tuple[float, float]:
        return time.perf_counter(), time.process_time()

    @app.task(name="handle", bind=True)  # type: ignore[untyped-decorator]
    def handle(self: Any, body: str) -> None:
        nonlocal left
        with lock:
            if not began:
                began.append(now())
        if client.set(self.request.id, "1", nx=True, ex=86400):
            client.set(self.request.id, "done", ex=86400)
        with lock:
            left -= 1
            is_last = left == 0
        if is_last:
            laps = [(end - start) / count for start, end in zip(began[0], now(), strict=True)]
            print(json.dumps(laps), flush=True)
            os._exit(0)

    body = BODY.decode()
    for _ in range(count):
        handle.delay(body)
    worker = app.Worker(pool="threads", concurrency=BATCH, queues=[queue], loglevel="CRITICAL")
    worker.start()


if __name__ == "__main__":
    main(*sys.argv[1:])
