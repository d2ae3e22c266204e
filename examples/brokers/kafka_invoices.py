"""Kafka to Kafka in one transaction: each order becomes an invoice, whatever is killed in between.

    python kafka_invoices.py send      # o-1, o-2, o-3, and o-1 once more: the producer retried
    python kafka_invoices.py work      # kill -9 it at any time, then start it again
    python kafka_invoices.py show      # the invoices, as a reader of committed messages sees them

The handler publishes to the transaction that also commits the order's offset. The topic
``orders.billed`` remembers the ids, so the second o-1 makes no second invoice.
"""

import os
import sys
import time

from twicesafe.consumers import Consumer, KafkaTransaction, Message

HOST = os.environ.get("BROKER", "localhost:9092")
URL = (
    f"kafka://{HOST}?topics=unbilled&group=invoices&group.instance.id=worker-1"
    "&transactional_id=invoices-1&processed=orders.billed"
)
ORDERS = ["o-1", "o-2", "o-3", "o-1"]


def bill(transaction: KafkaTransaction, message: Message) -> None:
    print(f"billing {message.id}", flush=True)
    transaction.publish("invoices", {"order": message.id, **message.json()}, key=message.key)
    time.sleep(1)  # time enough to kill this process


def work() -> None:
    consumer = Consumer.open(URL, concurrency=1)
    consumer.run(bill)


def send() -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": HOST, "enable.idempotence": True})
    for order in ORDERS:
        producer.produce("unbilled", b'{"cents": 500}', key="ann", headers={"id": order})
    producer.flush()
    print("sent", *ORDERS)


def show() -> None:
    from confluent_kafka import Consumer as Reader

    settings = {"bootstrap.servers": HOST, "group.id": f"show-{time.time()}"}
    reader = Reader(
        {**settings, "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    )
    reader.subscribe(["invoices"])
    while (record := reader.poll(10)) is not None:
        print(record.value().decode(), flush=True)
    reader.close()


if __name__ == "__main__":
    {"send": send, "work": work, "show": show}[sys.argv[1]]()
