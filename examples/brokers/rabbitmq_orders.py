"""Orders on RabbitMQ: send orders, charge them, kill the worker, start it again.

    python rabbitmq_orders.py send      # o-1, o-2, o-3, and o-1 once more: the producer retried
    python rabbitmq_orders.py work      # kill -9 it while it charges o-2, then start it again

The second worker charges o-2, attempt 2, and o-3. No worker charges o-1 again.
"""

import asyncio
import os
import sys
import time

from twicesafe import Policy, Receiver, current_claim
from twicesafe.consumers import Consumer, Message

SERVER = os.environ.get("BROKER", "amqp://guest:guest@localhost/")
URL = f"{SERVER}?queue=orders"
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
    import aio_pika

    async with await aio_pika.connect(SERVER) as connection:
        channel = await connection.channel()  # with publisher confirms
        quorum = {
            "x-queue-type": "quorum",
            "x-delivery-limit": 100,
            "x-dead-letter-exchange": "lost",
        }
        await channel.declare_queue("orders", durable=True, arguments=quorum)
        for order in ORDERS:
            message = aio_pika.Message(b'{"cents": 500}', message_id=order, delivery_mode=2)
            await channel.default_exchange.publish(message, "orders")
    print("sent", *ORDERS)


if __name__ == "__main__":
    {"send": lambda: asyncio.run(send()), "work": work}[sys.argv[1]]()
