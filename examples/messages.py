"""A message consumer as a class: keys, redeliveries, and dead letters for messages that cannot succeed."""

from twicesafe import Backoff, Key, MessageHandler, ParkedError, Policy, Receiver, TwicesafeError

posted: list[str] = []
dead_letters: list[tuple[str, str]] = []


class Payments(MessageHandler[dict, str]):
    def key(self, message: dict) -> Key:
        return Key.from_message(type="payment", id=message["id"], source="shop")

    def handle(self, message: dict) -> str:
        if message["cents"] <= 0:
            raise ValueError("nothing to pay")
        posted.append(message["id"])
        return f"posted {message['id']}"

    def dead_letter(self, message: dict, error: Exception) -> None:
        dead_letters.append((message["id"], type(error).__name__))


def deliver(handler: Payments, message: dict) -> None:
    """What a broker loop does: acknowledge what has an answer or a dead letter, else redeliver."""
    for delivery in range(1, 6):
        try:
            outcome = handler(message)
            print(f"{message['id']} delivery {delivery}: ack ({outcome.value})")
            return
        except ParkedError as error:
            print(f"{message['id']} delivery {delivery}: ack, dead letter ({error})")
            return
        except (ValueError, TwicesafeError) as error:
            print(f"{message['id']} delivery {delivery}: no ack ({error})")


policy = Policy(max_attempts=3, backoff=Backoff(first=0))
with Receiver.open("memory://", policy=policy) as receiver:
    payments = Payments(receiver)
    for message in (
        {"id": "m-1", "cents": 500},
        {"id": "m-2", "cents": 0},  # poison: fails every time
        {"id": "m-1", "cents": 500},  # the broker sent it again
    ):
        deliver(payments, message)

print("posted:", posted, "| dead letters:", dead_letters)
assert posted == ["m-1"]
assert dead_letters == [("m-2", "ParkedError")]
