"""How a consumer's message becomes a call: its key, its handler, and what becomes of a dead letter. No I/O.

In lease mode the call runs the handler, and the flow claims and records. In transaction mode the call is a
whole transaction, from BEGIN to COMMIT. In Kafka transaction mode the source's commit is the record.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator
from typing import Any, Final, NoReturn, TypeAlias

from .._core.call import Call
from .._core.consuming.message import Message, body_of, lane_of
from .._core.consuming.recovery import DeadLetter, Recover, decide, until_done
from .._core.consuming.source import Source
from .._core.consuming.state import ConsumerState
from .._core.handler_kind import refuse_async, refuse_generator
from .._core.handler_profile import HandlerProfile, profile_of
from .._core.outbox.requests import Message as Outgoing
from .._core.resolved_policy import ResolvedPolicy
from .._values.keys import Key, KeyLike
from .._values.policy import Policy
from .._values.signed_key import SIGNATURE_HEADER, require_signature
from ..errors import ParkedError, UsageError
from ..inbox import AsyncInbox, Inbox
from ..inbox._consumer_delivery import ConsumerDelivery
from ._dead_letters import broker_of, dead_message, is_refused
from ._publishing import Publishing

__all__ = ["MessageCalls", "park", "park_async"]

_SIGNATURE: Final = SIGNATURE_HEADER.lower()

Acts: TypeAlias = Generator[Callable[[], Any], Any, None]
"""Functions that `Consumer` calls, and `AsyncConsumer` calls and awaits."""


class MessageCalls:
    """Makes the calls of `ConsumerBase`, which has the settings."""

    source: Source
    policy: Policy
    _is_async: bool
    _inbox: Inbox | AsyncInbox | None
    _connect: Callable[[], Any] | None
    _publishing: Publishing | None
    _key: Callable[[Message], KeyLike]
    _recover: Recover
    _resolved: ResolvedPolicy
    _concurrency: int
    _batch: int
    _ordered: bool
    _home: Any
    """The receiver or inbox, with this consumer's scope, policy and fingerprint."""
    _claims: Any
    """The receiver that dead letters, parked lanes and starts are claimed with."""
    _dead_receiver: Any
    _lane_receiver: Any
    _start_receiver: Any
    _publisher: Any
    _dead_topic: str | None

    @property
    def _is_leasing(self) -> bool:
        return self._inbox is None and self._publishing is None

    def _state(
        self, handler: Callable[..., Any], profile: HandlerProfile, idle: float | None
    ) -> ConsumerState:
        source = self.source
        call_of = self._leased_call if self._is_leasing else self._transaction_call
        return ConsumerState(
            call=functools.partial(call_of, handler, profile),
            dead_call=self._dead_call,
            mark=self._mark,
            look_up=functools.partial(self._looking, handler, profile),
            concurrency=self._concurrency,
            batch=self._batch,
            most_held=source.most_held,
            ordered=self._ordered,
            leases=self._is_leasing,
            ack_wait=lambda: source.ack_wait,
            can_delay=source.can_delay,
            clock=self._claims._runtime.clock,
            notify=self._home._notify,
            idle=idle,
        )

    def _profile(self, handler: Callable[..., Any]) -> HandlerProfile:
        profile = profile_of(handler)
        if profile.problem == "generator":
            raise refuse_generator(handler)
        if self._is_async != (profile.problem == "async"):
            if not self._is_async:
                raise refuse_async(handler)
            raise UsageError("AsyncConsumer needs an async handler; use Consumer for this one")
        wanted = 1 if self._is_leasing else 2
        if not profile.least <= wanted <= profile.most:
            first = "" if wanted == 1 else "connection, " if self._inbox else "transaction, "
            shape = f"handle({first}message)"
            raise UsageError(f"the handler of this consumer is called as {shape}")
        return profile

    def _leased_call(
        self, handler: Callable[..., Any], profile: HandlerProfile, message: Message
    ) -> Call:
        """The call for a message. What it raises sends the message to the dead letters."""
        run = functools.partial(handler, message)
        call: Call = self._home._call(self._key_of(message), run, profile, (message,), {})
        call.decide = decide(self._recover, message, self._resolved)
        return self._in_its_trace(message, call)

    def _transaction_call(
        self, handler: Callable[..., Any], profile: HandlerProfile, message: Message
    ) -> Call:
        """The same, in the transaction modes."""
        if self._publishing is not None:
            return self._publishing_call(self._publishing, handler, profile, message)
        delivery = self._delivery(handler, profile, message)
        run = functools.partial(self._deliver, delivery)
        call: Call = self._home._call(delivery.key, run, profile, (None, message), {})
        call.run = run  # without a span: the handler in the transaction has one
        return self._in_its_trace(message, call)

    def _in_its_trace(self, message: Message, call: Call) -> Call:
        """The handler continues the trace that the producer's headers name."""
        tracer = self._home._tracer
        if tracer is not None and message.headers:
            call.run = tracer.trace_message(message.headers, call.run)
        return call

    def _publishing_call(
        self,
        publishing: Publishing,
        handler: Callable[..., Any],
        profile: HandlerProfile,
        message: Message,
    ) -> Call:
        key, decision = self._key_of(message), decide(self._recover, message, self._resolved)
        deliver = publishing.deliver_async if self._is_async else publishing.deliver
        run = functools.partial(deliver, key, handler, message, decision)
        call: Call = self._home._call(key, run, profile, (None, message), {})
        return self._in_its_trace(message, call)

    _deliver: Callable[..., Any]
    """Transaction mode: what to run for a message, from BEGIN to COMMIT."""
    _look_up: Callable[..., Any]
    """Transaction mode: what to run to learn its recorded outcome."""

    def _delivery(
        self, handler: Callable[..., Any], profile: HandlerProfile, message: Message
    ) -> ConsumerDelivery:
        assert self._connect is not None
        decision = decide(self._recover, message, self._resolved)
        key = self._key_of(message)
        return ConsumerDelivery(self._home, self._connect, key, handler, profile, message, decision)

    def _looking(
        self,
        handler: Callable[..., Any],
        profile: HandlerProfile,
        message: Message,
        error: Exception,
    ) -> Callable[[], Any]:
        return functools.partial(self._look_up, self._delivery(handler, profile, message), error)

    def _mark(self, message: Message, call: Call, elsewhere: bool) -> Call | None:
        """The call whose claim counts a start. None: the broker has not delivered it before, nor
        elsewhere, so no worker has died in it; unless one start is all that is allowed."""
        is_first = message.deliveries == 1 and not elsewhere and self.policy.max_attempts > 1
        if is_first or self._publishing is not None:
            return None
        receiver = self._start_receiver
        mark: Call = receiver._call(self._mark_key(call.key), _nothing, _MARKED, (), {})
        return mark

    def _mark_key(self, key: Key) -> Key:
        return self._start_receiver.key(key.id.hex())  # type: ignore[no-any-return]

    def _key_of(self, message: Message) -> Key:
        scope = (*self._home.scope, *self.source.scope(message.topic))
        given = self._key(message)
        check = self.policy.signatures
        if check is not None:
            require_signature(check, given, message.headers.get(_SIGNATURE, ""))
        return self._home._full_key(given, scope)  # type: ignore[no-any-return]

    def _dead_call(self, message: Message, error: Exception) -> Call:
        """Publish a message to the dead letters: once per position, where the broker has one.

        The id and the body belong to the key, because positions are used again: a topic that was
        deleted and created again, or whose log was cut, has other messages there. In Kafka
        transaction mode it is published again unless its offset is committed.
        """
        receiver = self._dead_receiver
        full = receiver.key(
            Key.natural(message.position, message.id or "", body_of(message).hex())
            if message.position and self._publishing is None
            else Key.random()
        )
        run = self._dead_publication(message, error)
        call: Call = receiver._call(full, run, profile_of(run), (), {})
        call.decide = until_done(receiver._resolved)
        return self._in_its_trace(message, call)

    def _dead_publication(self, message: Message, error: Exception) -> Callable[[], Any]:
        """Park the lane, if order matters, and publish."""
        raise NotImplementedError

    _park: Callable[..., Any]
    """The handler of a lane's marker."""
    _adapted: Any
    _dead: Any
    _prepares: bool

    def _park_lane(self, message: Message) -> Acts:
        lane = self._lane(message)
        if lane is None:
            return
        park = functools.partial(self._lane_receiver.process, lane, self._park)
        with contextlib.suppress(ParkedError):
            with contextlib.suppress(DeadLetter):
                yield park
            yield park  # the record says so

    def _publish_dead(self, message: Message, error: Exception) -> Acts:
        if self._prepares:
            yield self._adapted.prepare_dead_letters
            self._prepares = False
        if self._publishing is not None:
            self._publishing.bury(message, error)
            return
        letter = self._dead_letter_of(message, error)
        (refusal,) = yield functools.partial(self._dead.publish, [letter])
        if is_refused(refusal):  # it may be too large with all its headers
            brief = self._dead_letter_of(message, error, brief=True)
            (refusal,) = yield functools.partial(self._dead.publish, [brief])
        if refusal is not None:
            raise refusal

    def _dead_letter_of(self, message: Message, error: Exception, brief: bool = False) -> Outgoing:
        try:
            key: Key | None = self._key_of(message)
        except Exception:
            key = None
        source = self.source
        topic = self._dead_topic or source.dead_topic(message.topic)
        lane = self._lane(message)
        return dead_message(
            message,
            error,
            topic,
            key=key,
            lane=None if lane is None else self._lane_receiver.key(lane),
            starts=None if key is None or self._inbox is None else self._mark_key(key),
            consumer=source.name,
            origin=source.origin(message.topic),
            place=source.place,
            broker=broker_of(source),
            brief=brief,
        )

    @property
    def _publishers_at_once(self) -> int:
        """Handlers run in parallel; how many may publish at once is for the publisher to say."""
        return getattr(self._publisher, "concurrency", 1)

    def _lane(self, message: Message) -> str | None:
        """What a dead letter parks; in Kafka transaction mode there is no store that could tell."""
        parks = self._ordered and message.key and self._publishing is None
        return lane_of(message) if parks else None


def _nothing() -> None:
    """What a mark runs: the message's transaction runs under it."""


_MARKED: Final = profile_of(_nothing)


def park() -> NoReturn:
    """The handler of a lane's marker: it parks the lane's record."""
    raise DeadLetter("a message of this key is dead")


async def park_async() -> NoReturn:
    park()
