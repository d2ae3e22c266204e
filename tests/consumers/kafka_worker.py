"""A consumer process in Kafka transaction mode that a test kills: ``python … URL OUT POINT NUMBER``.

It copies each message to the topic OUT. At its NUMBER-th transaction it dies at POINT: before the
produced messages are committed (``produced``), or before it learns that they are (``committed``). With
the point ``stuck``, its first handler says so and waits for a line on standard input.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from twicesafe.consumers import Consumer, KafkaTransaction, Message
from twicesafe.consumers.sources._kafka_transactions import TransactionalMember


class DyingProducer:
    """The producer, with a process that dies around a commit."""

    def __init__(self, producer: Any, point: str, number: int) -> None:
        self._producer, self._point, self._left = producer, point, number

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def commit_transaction(self, timeout: float) -> None:
        self._left -= 1
        if self._left == 0 and self._point == "produced":
            self._producer.flush(20)
            os.kill(os.getpid(), signal.SIGKILL)
        self._producer.commit_transaction(timeout)
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def main(url: str, out: str, point: str, number: str) -> None:
    connect = TransactionalMember._connect

    def dying(member: Any) -> bool:
        done = connect(member)
        if point != "stuck" and not isinstance(member._producer, DyingProducer):
            member._producer = DyingProducer(member._producer, point, int(number))
        return done

    TransactionalMember._connect = dying  # type: ignore[method-assign]
    waited: list[str] = []

    def copy(transaction: KafkaTransaction, message: Message) -> None:
        transaction.publish(out, message.body)
        if point == "stuck" and not waited:
            print("stuck", flush=True)
            waited.append(sys.stdin.readline())

    with Consumer.open(url, concurrency=1, batch=4) as consumer:
        consumer.drain(copy, idle=20.0 if point != "stuck" else 10.0)


if __name__ == "__main__":
    main(*sys.argv[1:])
