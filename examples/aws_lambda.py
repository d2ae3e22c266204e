"""A Lambda function behind an SQS FIFO queue: repeats are answered, a failure stops only its group."""

from twicesafe import Backoff, Policy, Receiver
from twicesafe.consumers import Message
from twicesafe.integrations.aws_lambda import batch_handler

# In a Lambda function: a store that all its instances share, for example redis://… or postgresql://…
receiver = Receiver.open("memory://", policy=Policy(backoff=Backoff(first=0)))
charged: list[str] = []
is_bank_open = False


@batch_handler(receiver)
def handler(message: Message) -> None:
    order = message.json()
    if order["cents"] > 1000 and not is_bank_open:
        raise RuntimeError("the bank is closed")
    charged.append(order["id"])


class Context:
    """Lambda passes its own."""

    def get_remaining_time_in_millis(self) -> int:
        return 30_000


def record(order: str, cents: int, customer: str) -> dict:
    return {
        "messageId": f"m-{order}",
        "body": f'{{"id": "{order}", "cents": {cents}}}',
        "attributes": {
            "ApproximateReceiveCount": "1",
            "MessageGroupId": customer,
            "MessageDeduplicationId": order,
        },
        "eventSource": "aws:sqs",
        "eventSourceARN": "arn:aws:sqs:eu-central-1:123456789012:orders.fifo",
    }


event = {
    "Records": [
        record("o-1", 500, "ann"),
        record("o-2", 9000, "ann"),  # fails
        record("o-3", 500, "ann"),  # waits behind it
        record("o-4", 500, "bob"),
    ]
}

first = handler(event, Context())
print("first delivery:", charged, first)
assert charged == ["o-1", "o-4"]
assert [one["itemIdentifier"] for one in first["batchItemFailures"]] == ["m-o-2", "m-o-3"]

is_bank_open = True
again = handler(event, Context())  # even the whole batch again charges each order once
print("second delivery:", charged, again)
assert charged == ["o-1", "o-4", "o-2", "o-3"]
assert again == {"batchItemFailures": []}
