"""Orders on Redis Streams or Valkey: send orders, charge them, kill the worker, start it again.

    python redis_orders.py send      # o-1, o-2, o-3, and o-1 once more: the producer retried
    python redis_orders.py work      # kill -9 it while it charges o-2, then start it again

The second worker charges o-2, attempt 2, and o-3. No worker charges o-1 again.
"""

import os
import sys
import time

from twicesafe import Policy, Receiver, current_claim
from twicesafe.consumers import Consumer, Message

SERVER = os.environ.get("BROKER", "redis://localhost:6379/0")
# Its own name: a worker that starts again gets what it left pending at once, not after `ack_wait`.
URL = f"{SERVER}?stream=orders&group=billing&consumer=worker-1"
ORDERS = ["o-1", "o-2", "o-3", "o-1"]


def charge(message: Message) -> str:
    print(f"charging {message.json()['order']}, attempt {current_claim().attempt}", flush=True)
    time.sleep(1)  # time enough to kill this process
    return "charged"


def work() -> None:
    receiver = Receiver.open("sqlite:///orders.db", policy=Policy(lease=3))
    consumer = Consumer.open(
        URL, receiver=receiver, concurrency=1, key=lambda one: one.json()["order"]
    )
    consumer.run(charge)


def send() -> None:
    import redis

    with redis.Redis.from_url(SERVER) as client:
        for order in ORDERS:
            client.xadd("orders", {"order": order, "cents": 500})
    print("sent", *ORDERS)


if __name__ == "__main__":
    {"send": send, "work": work}[sys.argv[1]]()
