"""Orders on Amazon SQS: send orders, charge them, kill the worker, start it again.

    python sqs_orders.py send      # o-1, o-2, o-3, and o-1 once more: the producer retried
    python sqs_orders.py work      # kill -9 it while it charges o-2, then start it again

The second worker charges o-2, attempt 2, and o-3. No worker charges o-1 again.
"""

import os
import sys
import time

from twicesafe import Policy, Receiver, current_claim
from twicesafe.consumers import Consumer, Message

ENDPOINT = os.environ.get("BROKER", "http://localhost:4566")  # LocalStack, ElasticMQ, ministack
URL = f"sqs://orders?region=us-east-1&endpoint={ENDPOINT}"  # in AWS: sqs://orders?region=…
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
    import boto3

    client = boto3.client("sqs", region_name="us-east-1", endpoint_url=ENDPOINT)
    settings = {"VisibilityTimeout": "10", "MessageRetentionPeriod": "86400"}
    queue = client.create_queue(QueueName="orders", Attributes=settings)["QueueUrl"]
    for order in ORDERS:
        id_ = {"id": {"DataType": "String", "StringValue": order}}
        client.send_message(QueueUrl=queue, MessageBody='{"cents": 500}', MessageAttributes=id_)
    client.close()
    print("sent", *ORDERS)


if __name__ == "__main__":
    {"send": send, "work": work}[sys.argv[1]]()
