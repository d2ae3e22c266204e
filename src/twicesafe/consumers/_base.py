"""What both consumers share: the settings, and how a message becomes a call. No I/O.

In lease mode (``receiver=``) the flow claims and records. In transaction mode (``inbox=``,
``connect=``) the handler's run is a whole transaction with its own record. Dead letters, and the starts
of messages that were delivered before, are claimed in the inbox's database. In Kafka transaction mode
(``transactional_id=`` in the URL) the source's commit is the record (`_publishing`).
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Literal, NoReturn, TypeAlias

from .._core.call import Call
from .._core.consuming.message import Message, body_of, key_of, lane_of
from .._core.consuming.recovery import DeadLetter, Recover, decide, default_recovery
from .._core.consuming.source import Found, Source, Terms
from .._core.consuming.state import ConsumerState, Report
from .._core.handler_kind import refuse_async, refuse_generator
from .._core.handler_profile import HandlerProfile, profile_of
from .._core.outbox_requests import Message as Outgoing
from .._core.resolved_policy import ResolvedPolicy
from .._values.keys import Key, KeyLike, as_key
from .._values.policy import Policy
from .._values.settings import expect, seconds
from .._values.signed_key import SIGNATURE_HEADER, require_signature
from ..errors import BrokerUnavailableError, ConfigurationError, UsageError, stays_here
from ..inbox import AsyncInbox, Inbox
from ..inbox._edge_delivery import EdgeDelivery
from ..receiver import AsyncReceiver, Receiver
from ..receiver._base import check_receiver
from ..receiver._delivering import policy_for_redelivery
from ._dead_letters import DeadLetterSetting, dead_message, destination
from ._publishing import Publishing, refuse_unused
from .sources import open_source

__all__ = ["ConsumerBase", "Order"]

Order: TypeAlias = Literal["key", "none"]

_log = logging.getLogger("twicesafe")

_SHARED: Final = (
    "retention", "wait", "in_flight", "max_attempts", "remember", "codec", "encryption",
)  # fmt: skip
"""Settings of a consumer's policy that an inbox has too."""
_SIGNATURE: Final = SIGNATURE_HEADER.lower()
FOREVER: Final = 1_000_000_000
"""Attempts of a dead letter: it is published, whatever that takes."""

LANES: Final = "parked lanes"
DEAD: Final = "dead letters"
STARTS: Final = "starts"


class ConsumerBase:
    """Settings, and how a message becomes a call."""

    _adapted: Any
    _is_async: bool

    def __init__(
        self,
        source: Source,
        *,
        receiver: Receiver | AsyncReceiver | None,
        inbox: Inbox | AsyncInbox | None,
        connect: Callable[[], Any] | None,
        key: Callable[[Message], KeyLike] | None,
        concurrency: int,
        batch: int,
        order: Order,
        dead_letter: DeadLetterSetting,
        recover: Recover | None,
        policy: Policy | None,
    ) -> None:
        publishes = bool(getattr(source, "publishes", False))
        self._check_mode(publishes, receiver, inbox, connect)
        self._publishing: Publishing | None = None
        if publishes:
            refuse_unused(policy, dead_letter)
            self._publishing = Publishing(source, self._dead_letter_of)  # type: ignore[arg-type]
            receiver = self._receiver_type.open("memory://")  # for dead letters on their way
        expect(order in ("key", "none"), "order", order, "use 'key' or 'none'")
        expect(is_count(batch), "batch", batch, "use 1 or more")
        expect(is_count(concurrency), "concurrency", concurrency, "use 1 or more")
        self.source = source
        self._inbox, self._connect = inbox, connect
        self._key = key_of if key is None else key
        self._concurrency = concurrency
        self._batch, self._ordered = batch, order == "key"
        self._recover = recover or default_recovery
        home: Any = receiver if receiver is not None else inbox
        self.policy: Policy = policy or home.policy
        self._leasing = policy_for_redelivery(self.policy, "consumers")
        self._resolved = ResolvedPolicy(self.policy)
        self._scope = (*home.scope, source.name)
        self._home = self._settled_home(home)
        claims: Any = home if receiver is not None else self._receiver_type(home.store)
        self._claims = claims
        self._dead_receiver = claims.options(
            scope=(*self._scope, DEAD),
            policy=self.policy.replace(
                max_attempts=FOREVER,
                remember=(),
                timeout=None,
                takeover="retry",
                in_flight="reject",
            ),
        )
        place = () if source.place in ("", source.name) else (source.place,)
        self._lane_receiver = claims.options(
            scope=(*self._scope, *place, LANES),
            policy=Policy(max_attempts=1, in_flight="reject", encryption=self.policy.encryption),
        )
        self._start_receiver = claims.options(
            scope=(*self._scope, STARTS),
            policy=self.policy.replace(
                remember=(), timeout=None, takeover="retry", in_flight="reject", outage="refuse"
            ),
        )
        self._dead_letter: Callable[[Message, Exception], Any] | None = None
        self._publisher: Any = None
        self._dead_topic: str | None = None
        self._prepares = dead_letter is None
        if dead_letter is None:
            dead_letter = source.dead_url
        if callable(dead_letter):
            if not self._is_async and profile_of(dead_letter).problem == "async":
                raise ConfigurationError(
                    "dead_letter= is async, and this consumer is blocking: use a plain function, or "
                    "AsyncConsumer"
                )
            self._dead_letter = dead_letter
        elif self._publishing is None:
            self._publisher, self._dead_topic = destination(dead_letter)
        self._runner: Any = None
        self._starting = False
        self._stop_early = False
        """`stop` was called before there was anything to stop."""

    def _check_mode(
        self, publishes: bool, receiver: object, inbox: object, connect: object
    ) -> None:
        name = type(self).__name__
        if publishes:
            if receiver is not None or inbox is not None or connect is not None:
                raise ConfigurationError(
                    "with transactional_id= the Kafka transaction is the record: remove receiver=, "
                    "inbox= and connect=, or remove transactional_id="
                )
            return
        if (receiver is None) == (inbox is None):
            raise ConfigurationError(
                f"{name} needs either receiver= (lease mode) or inbox= and connect= (transaction mode)"
            )
        if receiver is not None:
            check_receiver(receiver, AsyncReceiver if self._is_async else Receiver, name)
            if connect is not None:
                raise ConfigurationError("connect= goes with inbox=, not with receiver=")
            return
        wanted = AsyncInbox if self._is_async else Inbox
        if not isinstance(inbox, wanted):
            raise ConfigurationError(f"inbox= must be an {wanted.__name__}, not {inbox!r}")
        if not callable(connect):
            raise ConfigurationError(
                "transaction mode needs connect=: a function that opens a connection, for example "
                "connect=pool.connection"
            )

    @property
    def _receiver_type(self) -> Any:
        return AsyncReceiver if self._is_async else Receiver

    def _settled_home(self, home: Any) -> Any:
        """The receiver or inbox with this consumer's scope, policy and fingerprint."""
        if self._inbox is None:
            return home.options(policy=self._leasing, fingerprint=body_of)
        known = {name: getattr(self.policy, name) for name in _SHARED}
        return home.options(policy=Policy(**known), fingerprint=body_of)

    @property
    def _is_leasing(self) -> bool:
        return self._inbox is None and self._publishing is None

    # -- from messages to calls ---------------------------------------------------------------

    def _state(
        self, handler: Callable[..., Any], profile: HandlerProfile, idle: float | None
    ) -> ConsumerState:
        source = self.source
        return ConsumerState(
            call=functools.partial(self._call_of, handler, profile),
            dead_call=self._dead_call,
            mark=self._mark,
            look_up=functools.partial(self._looking, handler, profile),
            concurrency=self._concurrency,
            batch=self._batch,
            most_held=source.most_held,
            ordered=self._ordered,
            leases=self._is_leasing,
            patience=lambda: source.patience,
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

    def _call_of(
        self, handler: Callable[..., Any], profile: HandlerProfile, message: Message
    ) -> Call:
        """The call for a message. What it raises sends the message to the dead letters."""
        call: Call
        run: Callable[[], Any]
        if self._is_leasing:
            run = functools.partial(handler, message)
            call = self._home._call(self._key_of(message), run, profile, (message,), {})
            call.decide = decide(self._recover, message, self._resolved)
            return call
        if self._publishing is not None:
            return self._publishing_call(self._publishing, handler, profile, message)
        delivery = self._delivery(handler, profile, message)
        run = functools.partial(self._deliver, delivery)
        call = self._home._call(delivery.key, run, profile, (None, message), {})
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
        return call

    _deliver: Callable[..., Any]
    """Transaction mode: what to run for a message, from BEGIN to COMMIT."""
    _look_up: Callable[..., Any]
    """Transaction mode: what to run to learn its recorded outcome."""

    def _delivery(
        self, handler: Callable[..., Any], profile: HandlerProfile, message: Message
    ) -> EdgeDelivery:
        assert self._connect is not None
        decision = decide(self._recover, message, self._resolved)
        key = self._key_of(message)
        return EdgeDelivery(self._home, self._connect, key, handler, profile, message, decision)

    def _looking(
        self,
        handler: Callable[..., Any],
        profile: HandlerProfile,
        message: Message,
        error: Exception,
    ) -> Callable[[], Any]:
        return functools.partial(self._look_up, self._delivery(handler, profile, message), error)

    def _mark(self, message: Message, call: Call) -> Call | None:
        """The call whose claim counts a start. None: the broker has not delivered it before, so no
        worker has died in it; unless one start is all that is allowed."""
        is_first = message.deliveries == 1 and self.policy.max_attempts > 1
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
        return as_key(given, scope)

    def _dead_call(self, message: Message, error: Exception) -> Call:
        """Publish a message to the dead letters: once per position, where the broker has one.

        The id and the body belong to the key, because positions are used again: a topic that is
        created anew, or whose log was cut, has other messages there. In Kafka transaction mode it is
        published again unless its offset is committed.
        """
        receiver = self._dead_receiver
        scope = receiver.key("-").scope
        key = (
            Key.natural(message.position, message.id or "", body_of(message).hex(), scope=scope)
            if message.position and self._publishing is None
            else Key.random(scope=scope)
        )
        full = receiver.key(Key(key.value, key.scope, absolute=True))
        run = self._dead_publication(message, error)
        call: Call = receiver._call(full, run, profile_of(run), (), {})
        call.decide = decide(default_recovery, message, receiver._resolved)
        return call

    def _dead_publication(self, message: Message, error: Exception) -> Callable[[], Any]:
        """Park the lane, if order matters, and publish."""
        raise NotImplementedError

    def _dead_letter_of(self, message: Message, error: Exception) -> Outgoing:
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
        )

    @property
    def _publishers_at_once(self) -> int:
        """Handlers run in parallel; how many may publish at once is for the publisher to say."""
        return getattr(self._publisher, "concurrency", 1)

    def _lane(self, message: Message) -> str | None:
        """What a dead letter parks; in Kafka transaction mode there is no store that could tell."""
        parks = self._ordered and message.key and self._publishing is None
        return lane_of(message) if parks else None

    # -- settings -----------------------------------------------------------------------------

    def _terms(self) -> Terms:
        resolved = self._resolved
        return Terms(
            lease=resolved.lease,
            retention=resolved.retention_ms / 1000,
            max_attempts=resolved.max_attempts,
            longest_backoff=seconds(resolved.backoff.most),
            concurrency=self._concurrency,
            batch=self._batch,
            ordered=self._ordered,
            timeout=resolved.timeout,
        )

    def _begins_without(self, error: BrokerUnavailableError, idle: float | None) -> None:
        """The broker is away at the start: `run` waits for it, `drain` cannot tell what is there."""
        if idle is not None:
            raise error
        _log.warning("consumer %s: %s; it is tried again", self.source.name, error)

    @contextlib.contextmanager
    def _begins(self) -> Iterator[None]:
        """Until there is a runner. A `stop` that comes meanwhile is meant for it."""
        if self._starting or (self._runner is not None and not self._runner.ended):
            raise UsageError("this consumer is already running")
        self._starting = True
        try:
            yield
        finally:
            self._starting = False
        early, self._stop_early = self._stop_early, False
        if early:
            self._runner.stop()

    def _warn(self, found: Iterable[Found]) -> None:
        for one in found:
            _log.warning("consumer %s: %s; %s", self.source.name, one.problem, one.remedy)

    @property
    def report(self) -> Report:
        """What the current or last run has done so far."""
        return Report() if self._runner is None else self._runner.report

    def stop(self) -> None:
        """Finish what runs, record and acknowledge it, give back the rest. From any thread.

        Before the first `run`, or while it connects: `run` ends at once.
        """
        if self._runner is None or self._starting:
            self._stop_early = True
        if self._runner is not None:
            self._runner.stop()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.source.name} {self._claims._place()}>"

    def __reduce__(self) -> NoReturn:
        raise stays_here(self)


def _nothing() -> None:
    """What a mark runs: the message's transaction runs under it."""


_MARKED: Final = profile_of(_nothing)


def opened(url: object, name: str) -> Source:
    if not isinstance(url, str):
        raise UsageError(f"{name}.open() takes the URL of a broker, not {type(url).__name__}")
    return open_source(url)


def parking(*_: object) -> NoReturn:
    """The handler of a lane's marker: it parks the lane's record."""
    raise DeadLetter("a message of this key is dead")


async def parking_async(*_: object) -> NoReturn:
    parking()


def is_count(given: object) -> bool:
    return isinstance(given, int) and not isinstance(given, bool) and given > 0
