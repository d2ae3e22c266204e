"""Orders on NATS JetStream: send orders, charge them, kill the worker, start it again.

    python nats_orders.py send      # o-1, o-2, o-3, and o-1 once more: the producer retried
    python nats_orders.py work      # kill -9 it while it charges o-2, then start it again

The second worker charges o-2, attempt 2, and o-3. No worker charges o-1 again.
"""

import asyncio
import os
import sys
import time

from twicesafe import Policy, Receiver, current_claim
from twicesafe.consumers import Consumer, Message

SERVER = os.environ.get("BROKER", "nats://localhost:4222")
URL = f"{SERVER}?stream=ORDERS&durable=billing&ack_wait=3"
ORDERS = ["o-1", "o-2", "o-3", "o-1"]


def charge(message: Message) -> str:
    print(f"charging {message.id}, attempt {current_claim().attempt}", flush=True)
    time.sleep(1)  # time enough to kill this process
    return "charged"


def work() -> None:
    receiver = Receiver.open("sqlite:///orders.db", policy=Policy(lease=3))
    consumer = Consumer.open(URL, receiver=receiver, concurrency=1)
    consumer.run(charge)


async def send() -> None:
    import nats

    connection = await nats.connect(SERVER)
    jetstream = connection.jetstream()
    await jetstream.add_stream(name="ORDERS", subjects=["orders.>"])
    for order in ORDERS:  # JetStream drops the second o-1 itself if it comes within 2 minutes
        await jetstream.publish("orders.new", b'{"cents": 500}', headers={"Nats-Msg-Id": order})
    await connection.close()
    print("sent", *ORDERS)


if __name__ == "__main__":
    {"send": lambda: asyncio.run(send()), "work": work}[sys.argv[1]]()
