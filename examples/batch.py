"""A batch: one outcome or failure per message; one bad message does not affect the others."""

from twicesafe import Receiver

done: list[str] = []


def handle(message: dict) -> str:
    if message["text"] == "bad":
        raise ValueError("cannot read this one")
    done.append(message["id"])
    return message["text"].upper()


batch = [
    {"id": "1", "text": "alpha"},
    {"id": "2", "text": "bad"},
    {"id": "1", "text": "alpha"},  # the same message twice in one batch
    {"id": "", "text": "no id"},  # no usable key
    {"id": "3", "text": "gamma"},
]

with Receiver.open("sqlite:///batch.db") as receiver:
    answers = receiver.process_many(batch, handle, key=lambda m: m["id"], concurrency=4)
    for message, answer in zip(batch, answers, strict=True):
        if answer.ok:
            print(f"{message['id']:1} ok      {answer.value}  replayed={answer.replayed}")
        else:
            print(f"{message['id']:1} failure {type(answer.error).__name__}: {answer.error}")

    retry = receiver.process_many(
        [m for m, a in zip(batch, answers, strict=True) if a.ok], handle, key=lambda m: m["id"]
    )
    print("the good ones again:", [answer.replayed for answer in retry])

assert sorted(done) == ["1", "3"]
assert [answer.ok for answer in answers] == [True, False, True, False, True]
