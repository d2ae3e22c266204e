"""AWS Lambda: each record of a batch, or a single event, is handled once. It needs no AWS package.

    @batch_handler(receiver)                              # SQS, FIFO, Kinesis, DynamoDB streams
    def handler(message: Message) -> None: ...            # answers {"batchItemFailures": […]}

    @event_handler(receiver, key=lambda event: event["id"])
    def handler(event: dict, context: object) -> dict: ...

The event source mapping must have ``ReportBatchItemFailures``: without it Lambda ignores the answer and
deletes failed messages. Verdicts become items of the answer:

    ack            not listed: Lambda deletes the message, or moves on in the stream
    retry          listed: it is delivered again after the queue's visibility time-out
    dead_letter    given to ``dead_letter=``; without it listed, for the queue's redrive policy

Failures are logged by the logger ``twicesafe``. Messages of one FIFO group, partition key or item
run one after the other. After a failure the rest of the group is not run, and is listed too. No
claim is renewed past the end of the invocation, and nothing starts in its last second.
"""

from __future__ import annotations

import base64
import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from .._core.commands import LostBeforeStartError
from .._core.consuming.message import Message, body_of, key_of
from .._core.consuming.recovery import DeadLetter, Recover, Retry, default_recovery
from .._core.consuming.verdicts import Verdict
from .._core.handler_call import name_of
from .._core.handler_kind import expect_done, refuse_generator
from .._core.handler_profile import FingerprintSetting, HandlerProfile, profile_of
from .._core.handler_scope import scope_of_function
from .._core.sqs_wire import BODY, ID, OURS, deduplication_id, headers_of
from .._core.sqs_wire import body_of as body_of_text
from .._values.keys import KeyLike
from .._values.policy import Policy
from .._values.settings import seconds
from ..errors import UsageError
from ..receiver import Receiver
from ..receiver._base import check_key, check_receiver
from ..receiver._batches import checked_concurrency
from ..receiver._queue_delivery import policy_for_redelivery, queue_decides, verdicts_on

__all__ = ["BatchAnswer", "LambdaContext", "batch_handler", "event_handler"]

BatchAnswer: TypeAlias = dict[str, list[dict[str, str]]]

_log = logging.getLogger("twicesafe")

RESERVE: Final = 1.0
"""Seconds at the end of an invocation in which no handler starts: for recording, and for the answer."""

TOGETHER: Final = 100
"""How many messages are claimed in one request."""


class LambdaContext(Protocol):
    """What is used of the context that Lambda passes."""

    def get_remaining_time_in_millis(self) -> int:
        """Milliseconds until Lambda ends this invocation."""
        ...


def batch_handler(
    receiver: Receiver,
    *,
    key: Callable[[Message], KeyLike] | None = None,
    scope: Iterable[str] | None = None,
    concurrency: int = 1,
    recover: Recover | None = None,
    dead_letter: Callable[[Message, Exception], object] | None = None,
) -> Callable[[Callable[[Message], Any]], Callable[[dict[str, Any], LambdaContext], BatchAnswer]]:
    """Make ``function(message)`` the handler of a Lambda function with a batch of records.

    The key is what ``key`` returns. Without ``key``, it is the id in the producer's headers; else the
    deduplication id of a FIFO queue if the producer gave it, the message id of SQS, or the event id
    of a stream. The scope is the receiver's, then ``scope`` (by default the function's module and
    name), then the ARN.
    """
    check_receiver(receiver, Receiver, "batch_handler")
    check_key(key)
    policy = policy_for_redelivery(receiver.policy, "queues")
    most = checked_concurrency(concurrency)

    def decorate(
        function: Callable[[Message], Any],
    ) -> Callable[[dict[str, Any], LambdaContext], BatchAnswer]:
        inner = scope_of_function(function) if scope is None else tuple(scope)
        profile = _profile(function)

        @functools.wraps(function)
        def handle(event: dict[str, Any], context: LambdaContext) -> BatchAnswer:
            records = _records(event)
            lanes = _lanes(records)
            done: set[str] = set()
            around = (*receiver.scope, *inner, records[0].arn) if records else ()
            while lanes and (left := _left(context)) > RESERVE:
                owner = receiver.options(
                    policy=bounded(policy, left), scope=around, fingerprint=body_of
                )
                some = _next(lanes)
                verdicts = verdicts_on(
                    owner,
                    [record.message for record in some],
                    functools.partial(_in_time, context, function),
                    key=key or key_of,
                    profile=profile,
                    recover=recover or some[0].recovery,
                    concurrency=most,
                )
                for record, verdict in zip(some, verdicts, strict=True):
                    if is_over := _is_over(record.message, verdict, dead_letter):
                        done.add(record.id)
                        lanes[record.lane].pop(0)
                    if not is_over or not lanes[record.lane]:
                        del lanes[record.lane]
            if lanes:
                _log.warning(
                    "the invocation ends in less than %g s: %d messages were not started and are listed",
                    RESERVE,
                    sum(map(len, lanes.values())),
                )
            failures = [record.id for record in records if record.id not in done]
            return {"batchItemFailures": [{"itemIdentifier": id_} for id_ in failures]}

        return handle

    return decorate


def event_handler(
    receiver: Receiver,
    *,
    key: Callable[[dict[str, Any]], KeyLike],
    scope: Iterable[str] | None = None,
    fingerprint: Callable[[dict[str, Any]], object] | None = None,
) -> Callable[[Callable[[Any, Any], Any]], Callable[[dict[str, Any], LambdaContext], Any]]:
    """Make ``function(event, context)`` the handler of single events: a repeat gets the first answer.

    An error is raised as it is: Lambda, or the caller, decides on the retry. ``fingerprint`` says which
    part of the event must be the same in every delivery; by default all of it.
    """
    check_receiver(receiver, Receiver, "event_handler")
    check_key(key)

    def decorate(
        function: Callable[[Any, Any], Any],
    ) -> Callable[[dict[str, Any], LambdaContext], Any]:
        inner = scope_of_function(function) if scope is None else tuple(scope)
        _profile(function)
        compared: FingerprintSetting = lambda event, _: fingerprint(event) if fingerprint else event  # noqa: E731

        @functools.wraps(function)
        def handle(event: dict[str, Any], context: LambdaContext) -> Any:
            left = _left(context)
            if left <= RESERVE:
                raise TimeoutError(
                    f"the invocation ends in {left:.1f} seconds, so the handler was not started; "
                    "send the event again"
                )
            owner = receiver.options(
                policy=bounded(receiver.policy, left),
                scope=(*receiver.scope, *inner),
                fingerprint=compared,
            )
            return owner.process(key(event), function, event, context).value

        return handle

    return decorate


def bounded(policy: Policy, left: float) -> Policy:
    """This policy for an invocation that ends in ``left`` seconds."""
    usable = left - RESERVE
    return policy.replace(
        lease=max(0.05, min(seconds(policy.lease), left)),
        max_lease=max(0.05, min(seconds(policy.max_lease), left)),
        wait=min(seconds(policy.wait), usable),
        timeout=None if policy.timeout is None else min(seconds(policy.timeout), usable),
    )


def _in_time(context: LambdaContext, function: Callable[[Message], Any], message: Message) -> Any:
    """Several messages are claimed together, and there may be no time left for the last ones."""
    if _left(context) <= RESERVE:
        raise LostBeforeStartError("the invocation ends, so the handler was not started")
    return function(message)


def _left(context: LambdaContext) -> float:
    return context.get_remaining_time_in_millis() / 1000


def _profile(function: Callable[..., Any]) -> HandlerProfile:
    profile = profile_of(function)
    if profile.problem == "generator":
        raise refuse_generator(function)
    if profile.problem:
        raise UsageError(
            f"{name_of(function)} is an async function, and Lambda awaits none: use a plain function "
            "that calls asyncio.run"
        )
    return profile


def _is_over(
    message: Message,
    verdict: Verdict[Any],
    dead_letter: Callable[[Message, Exception], object] | None,
) -> bool:
    """Whether the message is done, or its dead letter was taken. Else Lambda delivers it again."""
    if verdict.action == "ack":
        return True
    _tell(message, verdict)
    if verdict.action != "dead_letter" or dead_letter is None:
        return False
    assert verdict.error is not None
    return _was_sent(dead_letter, message, verdict.error)


def _tell(message: Message, verdict: Verdict[Any]) -> None:
    """Lambda shows errors that a function raises. These are not raised, so they are logged."""
    error = verdict.error
    assert error is not None
    cause = error.__cause__ if isinstance(error, (Retry, DeadLetter)) else None
    again = "it is delivered again" if verdict.action == "retry" else "it is not tried again"
    text = "the message %s was not handled, and %s: %s"
    _log.warning(text, message.position, again, cause or error, exc_info=cause)


def _was_sent(
    dead_letter: Callable[[Message, Exception], object], message: Message, error: Exception
) -> bool:
    """Whether the letter was taken; if not, the message is delivered again, and then its letter."""
    try:
        expect_done(dead_letter(message, error), "dead_letter=")
    except Exception:
        _log.exception("the dead letter of %s was not sent", message.position)
        return False
    return True


# -- the order of the messages ----------------------------------------------------------------


class _Record(msgspec.Struct):
    message: Message
    id: str
    """What Lambda calls its itemIdentifier."""
    arn: str
    lane: str = ""
    recovery: Recover = queue_decides
    """By default: a queue decides when it delivers again. A stream does so at once."""


def _lanes(records: Sequence[_Record]) -> dict[str, list[_Record]]:
    """Messages that must run one after the other; one without an ordering key is alone."""
    lanes: dict[str, list[_Record]] = {}
    for record in records:
        key = record.message.key
        record.lane = f"alone/{record.id}" if key is None else f"key/{key}"
        lanes.setdefault(record.lane, []).append(record)
    return lanes


def _next(lanes: dict[str, list[_Record]]) -> list[_Record]:
    """The first messages of some lanes, to be claimed together.

    One that was delivered before is alone: it may be what ended the last invocation, and a claim that
    is left behind counts as an attempt.
    """
    heads = [lane[0] for lane in lanes.values()]
    fresh = [record for record in heads if record.message.deliveries in (None, 1)]
    return fresh[:TOGETHER] or heads[:1]


# -- reading the event ------------------------------------------------------------------------


def _records(event: dict[str, Any]) -> list[_Record]:
    found = event.get("Records")
    if not isinstance(found, list):
        raise UsageError(
            "this event has no Records, so it is not a batch; use event_handler for single events"
        )
    return list(_read(found))


def _read(found: list[dict[str, Any]]) -> Iterator[_Record]:
    for raw in found:
        source = raw.get("eventSource")
        if source not in _READERS:
            raise UsageError(
                f"eventSource={source!r} is not supported: batch_handler takes "
                f"{', '.join(_READERS)}; use event_handler for other events"
            )
        yield _READERS[source](raw, raw["eventSourceARN"])


def _sqs(raw: dict[str, Any], arn: str) -> _Record:
    known, id_ = raw.get("attributes", {}), raw["messageId"]
    headers = headers_of(
        {name: _attribute(given) for name, given in raw.get("messageAttributes", {}).items()}
    )
    ordered = arn.endswith(".fifo")  # groups of a standard queue share it fairly, without an order
    message = Message(
        id=headers.get(ID) or deduplication_id(known, raw["body"]) or id_,
        topic=_name(arn),
        body=body_of_text(raw["body"], headers.get(BODY)),
        key=known.get("MessageGroupId") if ordered else None,
        headers={name: value for name, value in headers.items() if name not in OURS},
        deliveries=int(known.get("ApproximateReceiveCount", 1)),
        position=id_,
    )
    return _Record(message, id_, arn)


def _attribute(given: dict[str, Any]) -> dict[str, Any]:
    """As SQS itself spells it: Lambda has other names, and bytes in base64."""
    if given.get("stringValue") is not None:
        return {"StringValue": given["stringValue"]}
    return {"BinaryValue": base64.b64decode(given.get("binaryValue") or "")}


def _kinesis(raw: dict[str, Any], arn: str) -> _Record:
    data = raw["kinesis"]
    message = Message(
        id=raw["eventID"],
        topic=_name(arn),
        body=base64.b64decode(data["data"]),
        key=data["partitionKey"],
        position=raw["eventID"],
    )
    return _Record(message, data["sequenceNumber"], arn, recovery=default_recovery)


def _dynamodb(raw: dict[str, Any], arn: str) -> _Record:
    data = raw["dynamodb"]
    encode = functools.partial(msgspec.json.encode, order="deterministic")
    message = Message(
        id=raw["eventID"],
        topic=_name(arn),
        body=encode(raw),
        key=encode(data["Keys"]).decode(),
        position=raw["eventID"],
    )
    return _Record(message, data["SequenceNumber"], arn, recovery=default_recovery)


def _name(arn: str) -> str:
    """The queue, stream or table: what follows region and account."""
    return arn.split(":", 5)[5]


_READERS: Final = {"aws:sqs": _sqs, "aws:kinesis": _kinesis, "aws:dynamodb": _dynamodb}
