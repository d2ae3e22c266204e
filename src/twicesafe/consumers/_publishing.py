"""Kafka transaction mode: what a handler publishes, and the message's offset, commit together.

    consumer = Consumer.open("kafka://…?topics=orders&group=billing&transactional_id=billing-1")
    consumer.run(handle)          # handle(transaction, message)

The handler only collects: `KafkaTransaction.publish` sends nothing. When it has returned, the source
publishes what was collected in the transaction that commits the message. There is no store: attempts
are counted in this process, and a dead letter is also published in a transaction.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from .._core.consuming.message import Message, body_of
from .._core.consuming.recovery import DeadLetter
from .._core.consuming.source import DeadLetterOf, Publication, PublishingSource
from .._core.outbox.requests import Message as Outgoing
from .._values.keys import Key
from .._values.outcomes import Outcome
from .._values.policy import Policy
from ..errors import ConfigurationError, FingerprintMismatchError, UsageError
from ..outbox._message import MAX_BYTES, checked

__all__ = ["KafkaTransaction", "Publishing", "refuse_unused"]

_USED: Final = frozenset({"max_attempts", "backoff", "retention"})


class KafkaTransaction:
    """Collects what the handler of one message publishes. It is sent if, and only if, the message is committed."""

    def __init__(self, key: Key) -> None:
        self._key = key
        self._messages: list[Outgoing] = []
        self._is_over = False

    def publish(
        self,
        topic: str,
        body: object,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        id: str | None = None,  # noqa: A002
    ) -> str:
        """Publish one message when this one is committed. Returns its id.

        ``body``: bytes and text are sent as they are, anything else as JSON. Without ``id``, it is
        derived from the key of the handled message and the number of this call: a re-run sends the
        same ids.
        """
        if self._is_over:
            raise UsageError("the handler has ended: publish before it returns")
        if id is None:
            id = self._key.derive(f"publish {topic} #{len(self._messages) + 1}").value  # noqa: A001
        fields = {"topic": topic, "body": body, "key": key, "headers": headers, "id": id}
        self._messages.append(checked(fields, False, MAX_BYTES).message)
        return id

    def _end(self) -> list[Outgoing]:
        self._is_over = True
        return self._messages


class Publishing:
    """The deliveries of a consumer in Kafka transaction mode."""

    def __init__(
        self, source: PublishingSource, dead_letter: Callable[[Message, Exception, bool], Outgoing]
    ) -> None:
        self._source, self._dead_letter = source, dead_letter
        self._attempts: dict[str, int] = {}
        """Failed attempts, by position, of messages that are not done."""

    def deliver(
        self,
        key: Key,
        handler: Callable[..., Any],
        message: Message,
        decide: Callable[[Exception, int], Exception],
    ) -> Outcome[Any]:
        """Run ``handler(transaction, message)``, unless its id is in the log of processed ids."""
        known = self._known(key, message)
        if known is not None:
            return known
        transaction = KafkaTransaction(key)
        try:
            value = handler(transaction, message)
        except Exception as error:
            problem = self._failed(key, message, error, decide)
        except BaseException:
            self._source.fail(message, _identity(key))
            raise
        else:
            return self._done(key, message, transaction, value)
        raise problem

    async def deliver_async(
        self,
        key: Key,
        handler: Callable[..., Awaitable[Any]],
        message: Message,
        decide: Callable[[Exception, int], Exception],
    ) -> Outcome[Any]:
        """Async version of `deliver`."""
        known = self._known(key, message)
        if known is not None:
            return known
        transaction = KafkaTransaction(key)
        try:
            value = await handler(transaction, message)
        except Exception as error:
            problem = self._failed(key, message, error, decide)
        except BaseException:
            self._source.fail(message, _identity(key))
            raise
        else:
            return self._done(key, message, transaction, value)
        raise problem

    def bury(self, message: Message, error: Exception) -> None:
        """Publish a dead letter in the transaction that commits the message."""
        self._attempts.pop(message.position, None)
        dead = self._dead_letter(message, error, False)
        self._source.keep(Publication(message, [dead], self._dead(message, error)))

    def _dead(self, message: Message, why: Exception | None = None) -> DeadLetterOf:
        """`why`: it is dead already, for this reason."""

        def dead(error: Exception, brief: bool) -> Outgoing:
            return self._dead_letter(message, why or error, brief)

        return dead

    def _known(self, key: Key, message: Message) -> Outcome[Any] | None:
        fingerprint = self._source.begin(message, _identity(key))
        if fingerprint is None:
            return None
        if not body_of(message).startswith(fingerprint):
            raise FingerprintMismatchError(
                "this id was processed with another body; the producer must use a new id", key=key
            )
        return Outcome(None, True, 1, key, 0)

    def _done(
        self, key: Key, message: Message, transaction: KafkaTransaction, value: Any
    ) -> Outcome[Any]:
        attempt = self._attempts.pop(message.position, 0) + 1
        dead = self._dead(message)
        self._source.keep(
            Publication(message, transaction._end(), dead, _identity(key), body_of(message))
        )
        return Outcome(value, False, attempt, key, 0)

    def _failed(
        self,
        key: Key,
        message: Message,
        error: Exception,
        decide: Callable[[Exception, int], Exception],
    ) -> Exception:
        self._source.fail(message, _identity(key))
        attempt = self._attempts.get(message.position, 0) + 1
        decision = decide(error, attempt)
        if isinstance(decision, DeadLetter):
            self._attempts.pop(message.position, None)
        else:
            self._attempts[message.position] = attempt
        return decision


def _identity(key: Key) -> bytes:
    return key.id[:16]


def refuse_unused(policy: Policy | None, dead_letter: object) -> None:
    """Raise for settings that have no effect in Kafka transaction mode."""
    if dead_letter is not None:
        raise ConfigurationError(
            "with transactional_id=, dead letters are published in the Kafka transaction, to the "
            "topic's name with .dead: remove dead_letter="
        )
    if policy is None:
        return
    usual = Policy()
    for name in policy.__dataclass_fields__:
        if name not in _USED and getattr(policy, name) != getattr(usual, name):
            raise ConfigurationError(
                f"{name}= has no effect with transactional_id=, because the Kafka transaction is the "
                "record; remove it (lease mode uses it)"
            )
