"""Consumers: messages from a broker are handled, recorded, and only then acknowledged.

    consumer = Consumer.open("kafka://127.0.0.1:9092?topics=orders&group=billing", receiver=receiver)
    consumer.run(handle)                       # until consumer.stop(), SIGTERM or SIGINT

Failures and order follow the same rules on every broker. Attempts are counted by the receiver's
record, a failed message backs off without delaying others, and after the last attempt it goes to
the dead letters. With an inbox, the effect and the record of a message commit together. With a Kafka transactional
id, the messages that a handler publishes and the offset of its message commit together.
"""

from .._core.consuming.message import Message
from .._core.consuming.recovery import DeadLetter, Retry
from .._core.consuming.state import Report
from .._core.consuming.verdicts import Verdict
from ._consumer import AsyncConsumer, Consumer
from ._letters import Letter
from ._publishing import KafkaTransaction
from ._replaying import DeadLetters

__all__ = [
    "AsyncConsumer",
    "Consumer",
    "DeadLetter",
    "DeadLetters",
    "KafkaTransaction",
    "Letter",
    "Message",
    "Report",
    "Retry",
    "Verdict",
]
