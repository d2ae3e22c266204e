"""Consumers: messages from a broker are handled, recorded, and only then acknowledged.

    consumer = Consumer.open("kafka://127.0.0.1:9092?topics=orders&group=billing", receiver=receiver)
    consumer.run(handle)                       # until consumer.stop(), SIGTERM or SIGINT

Failures and order follow the same rules on every broker. Attempts are counted by the receiver's
record, a failed message backs off without delaying others, and after the last attempt it goes to
the dead letters. With an inbox, the effect and the record of a message commit together. With a
Kafka transactional id, the messages that a handler publishes and the offset of its message commit
together.

    _consumer       `Consumer` and `AsyncConsumer`; what they share is in `_base`
    _calls          how a message becomes a call: its key, its handler, its dead letter
    _publishing     Kafka transaction mode
    _cancellations  a cancellation inside a handler is that handler's failure
    _django         closes dead connections of Django before each handler
    _signals        SIGTERM and SIGINT stop the consumers of the main thread
    _dead_letters   a dead letter as a message
    _replaying      `DeadLetters`: look at them, replay or discard them; `_letters` chooses them
    sources/        where messages come from, one file per broker
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
