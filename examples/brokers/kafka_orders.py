"""Orders on Kafka: send orders, charge them, kill the worker, start it again.

    python kafka_orders.py send      # o-1, o-2, o-3, and o-1 once more: the producer retried
    python kafka_orders.py work      # kill -9 it while it charges o-2, then start it again

The second worker charges o-2, attempt 2, and o-3. No worker charges o-1 again.
"""

import os
import sys
import time

from twicesafe import Policy, Receiver, current_claim
from twicesafe.consumers import Consumer, Message

HOST = os.environ.get("BROKER", "localhost:9092")
# The instance id: a worker that starts again gets its partitions at once. Another one gets them after the
# session time-out, which is 45 s if it is not set.
URL = (
    f"kafka://{HOST}?topics=orders&group=billing&group.instance.id=worker-1&session.timeout.ms=6000"
)
ORDERS = ["o-1", "o-2", "o-3", "o-1"]


def charge(message: Message) -> str:
    print(f"charging {message.id}, attempt {current_claim().attempt}", flush=True)
    time.sleep(1)  # time enough to kill this process
    return "charged"


def work() -> None:
    receiver = Receiver.open("sqlite:///orders.db", policy=Policy(lease=3))
    consumer = Consumer.open(URL, receiver=receiver, concurrency=1)
    consumer.run(charge)


def send() -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": HOST, "enable.idempotence": True})
    for order in ORDERS:
        producer.produce("orders", b'{"cents": 500}', key="ann", headers={"id": order})
    producer.flush()
    print("sent", *ORDERS)


if __name__ == "__main__":
    {"send": send, "work": work}[sys.argv[1]]()
