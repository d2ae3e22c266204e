"""What both consumers share: the settings, and how a run begins and stops. No I/O.

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
from typing import Any, Final, Generic, Literal, NoReturn, Self, TypeAlias, TypeVar

from .. import _forking
from .._core.consuming.message import Message, body_of, key_of
from .._core.consuming.recovery import DeadLetter, Recover, Retry, default_recovery
from .._core.consuming.source import ConsumerSettings, Source, SourceProblem
from .._core.consuming.state import Report
from .._core.handler_call import expect_shape
from .._core.handler_profile import profile_of
from .._core.resolved_policy import ResolvedPolicy
from .._runtime.adapting import own_process
from .._values.keys import KeyLike
from .._values.policy import Policy
from .._values.settings import Duration, expect, is_whole, seconds
from ..errors import BrokerUnavailableError, ConfigurationError, UsageError, stays_here
from ..inbox import AsyncInbox, Inbox
from ..receiver import AsyncReceiver, Receiver
from ..receiver._base import check_receiver
from ..receiver._queue_delivery import policy_for_redelivery
from ._calls import MessageCalls
from ._dead_letters import DeadLetterSetting, destination
from ._django import connecting
from ._publishing import Publishing, refuse_unused
from .sources import open_source

__all__ = ["ConsumerBase", "Order"]

Order: TypeAlias = Literal["key", "none"]

_log = logging.getLogger("twicesafe")

_SHARED: Final = (
    "retention", "wait", "in_flight", "max_attempts", "remember", "codec", "encryption",
)  # fmt: skip
"""Settings of a consumer's policy that an inbox has too."""
FOREVER: Final = 1_000_000_000
"""Attempts of a dead letter: it is tried until it is published."""

LANES: Final = "parked lanes"
DEAD: Final = "dead letters"
STARTS: Final = "starts"


ReceiverT = TypeVar("ReceiverT", bound=Receiver | AsyncReceiver)
InboxT = TypeVar("InboxT", bound=Inbox | AsyncInbox)


class ConsumerBase(MessageCalls, Generic[ReceiverT, InboxT]):
    """Settings, and what both consumers do without asking the broker."""

    def __init__(
        self,
        source: Source,
        *,
        receiver: ReceiverT | None = None,
        inbox: InboxT | None = None,
        connect: Callable[[], Any] | None = None,
        key: Callable[[Message], KeyLike] | None = None,
        concurrency: int = 8,
        batch: int = 100,
        order: Order = "key",
        dead_letter: DeadLetterSetting = None,
        recover: Recover | None = None,
        policy: Policy | None = None,
    ) -> None:
        publishes = bool(getattr(source, "publishes", False))
        self._check_mode(publishes, receiver, inbox, connect)
        self._publishing: Publishing | None = None
        if publishes:
            refuse_unused(policy, dead_letter)
            self._publishing = Publishing(source, self._dead_letter_of)  # type: ignore[arg-type]
            receiver = self._receiver_type.open("memory://")  # for dead letters on their way
        expect(order in ("key", "none"), "order", order, "use 'key' or 'none'")
        expect(is_whole(batch), "batch", batch, "use 1 or more")
        expect(is_whole(concurrency), "concurrency", concurrency, "use 1 or more")
        _check_function("key", key, "message")
        _check_function("recover", recover, "message", "error", "attempt")
        expect(policy is None or isinstance(policy, Policy), "policy", policy, "use a Policy")
        self.source = source
        self._inbox = inbox
        self._connect = connect if connect is None or self._is_async else connecting(connect)
        self._key = key_of if key is None else key
        self._concurrency = concurrency
        self._batch, self._ordered = batch, order == "key"
        self._recover = functools.partial(self._logging, recover or default_recovery)
        home: Any = receiver if receiver is not None else inbox
        self.policy: Policy = policy or home.policy
        self._resolved = ResolvedPolicy(self.policy)
        self._home = self._settled_home(home)
        self._claims: Any = home if receiver is not None else self._receiver_type(home.store)
        self._make_receivers((*home.scope, source.name))
        self._settle_dead_letters(dead_letter)
        self._adapt()
        self._runner: Any = None
        self._starting = self._is_closed = False
        self._process = 0
        """The process that uses the connection to the broker; 0: none yet."""
        self._stop_early = False
        """`stop` was called before there was anything to stop."""

    def _make_receivers(self, scope: tuple[str, ...]) -> None:
        """For what is claimed beside the messages: dead letters, parked lanes and starts."""
        self._dead_receiver = self._claims.options(
            scope=(*scope, DEAD),
            policy=self.policy.replace(
                max_attempts=FOREVER,
                remember=(),
                timeout=None,
                takeover="retry",
                in_flight="reject",
            ),
        )
        source = self.source
        place = () if source.place in ("", source.name) else (source.place,)
        self._lane_receiver = self._claims.options(
            scope=(*scope, *place, LANES),
            policy=Policy(max_attempts=1, in_flight="reject", encryption=self.policy.encryption),
        )
        self._lane_receiver._hidden = None  # the names of parked lanes are read back
        self._start_receiver = self._claims.options(
            scope=(*scope, STARTS),
            policy=self.policy.replace(
                remember=(), timeout=None, takeover="retry", in_flight="reject", outage="refuse"
            ),
        )

    def _settle_dead_letters(self, given: DeadLetterSetting) -> None:
        """Who takes the dead letters: a function, or a publisher and a topic."""
        self._dead_letter: Callable[[Message, Exception], Any] | None = None
        self._publisher: Any = None
        self._dead_topic: str | None = None
        self._prepares = given is None
        chosen = self.source.dead_url if given is None else given
        if callable(chosen):
            problem = profile_of(chosen).problem
            if problem == "generator":
                raise ConfigurationError("dead_letter= is a generator: use a plain function")
            if problem == "async" and not self._is_async:
                raise ConfigurationError(
                    "dead_letter= is async, and this consumer is blocking: use a plain function, or "
                    "AsyncConsumer"
                )
            expect_shape(chosen, "dead_letter=", "message", "error")
            self._dead_letter = chosen
        elif self._publishing is None:
            is_usable = isinstance(chosen, str) or hasattr(chosen, "publish")
            expect(is_usable, "dead_letter", chosen, "use a publisher's URL, or a function")
            self._publisher, self._dead_topic = destination(chosen)

    @classmethod
    def open(
        cls,
        url: str,
        *,
        receiver: ReceiverT | None = None,
        inbox: InboxT | None = None,
        connect: Callable[[], Any] | None = None,
        key: Callable[[Message], KeyLike] | None = None,
        concurrency: int = 8,
        batch: int = 100,
        order: Order = "key",
        dead_letter: DeadLetterSetting = None,
        recover: Recover | None = None,
        policy: Policy | None = None,
    ) -> Self:
        """Open a consumer of the messages at this URL. Not a coroutine: it connects on first use.

        ``receiver``: lease mode, ``handle(message)``. ``inbox`` and ``connect``: transaction mode,
        ``handle(connection, message)`` in one transaction per message. Neither: Kafka transaction
        mode, ``handle(transaction, message)``, with ``transactional_id=`` in a Kafka URL. ``key``:
        a function that returns the idempotency key of a message; default: the id that its producer
        gave it. ``concurrency``: how many handlers run at once. ``batch``: how many messages are
        fetched ahead. ``order``: with "key", messages of one key run one after the other, and wait
        behind one that failed. ``dead_letter``: a publisher's URL with ``topic=``, or a function of
        message and error; default: a place next to the source. ``recover``: a function of message,
        error and attempt that decides what follows a failed attempt. For `AsyncConsumer` the
        handler is async, and ``connect`` returns an async context manager or an async connection.
        """
        return cls(
            opened(url, cls.__name__),
            receiver=receiver,
            inbox=inbox,
            connect=connect,
            key=key,
            concurrency=concurrency,
            batch=batch,
            order=order,
            dead_letter=dead_letter,
            recover=recover,
            policy=policy,
        )

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
        if not hasattr(inbox.store, "perform_many"):  # only a part of a store, as Django's is
            raise ConfigurationError(
                f"{name} cannot use the inbox of open_inbox(), because it also claims keys outside your "
                "transactions; open an inbox by the URL of the same database, like "
                "Inbox.open('postgresql:///shop')"
            )
        if not callable(connect):
            raise ConfigurationError(
                "transaction mode needs connect=: a function that opens a connection, for example "
                "connect=pool.connection"
            )

    def _adapt(self) -> None:
        """Make the source and the publisher of dead letters callable from threads, or from a loop."""
        raise NotImplementedError

    @property
    def _receiver_type(self) -> Any:
        return AsyncReceiver if self._is_async else Receiver

    def _settled_home(self, home: Any) -> Any:
        """The receiver or inbox with this consumer's scope, policy and fingerprint."""
        leasing = policy_for_redelivery(self.policy, "consumers")  # in both modes: it may refuse
        if self._inbox is None:
            return home.options(policy=leasing, fingerprint=body_of)
        known = {name: getattr(self.policy, name) for name in _SHARED}
        return home.options(policy=Policy(**known), fingerprint=body_of)

    # -- settings -----------------------------------------------------------------------------

    def _consumer_settings(self) -> ConsumerSettings:
        resolved = self._resolved
        return ConsumerSettings(
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
        """The broker did not answer at the start: `run` waits for it, `drain` cannot know whether
        there are messages.
        """
        if idle is not None:
            raise error
        _log.warning("consumer %s: %s; it is tried again", self.source.name, error)

    def _logging(
        self, recover: Recover, message: Message, error: Exception, attempt: int
    ) -> Retry | DeadLetter:
        """The record, the events and the dead letter have only the name and text of the error, not its traceback."""
        _log.warning(
            "consumer %s: the handler failed: key=%s attempt=%d",
            self.source.name,
            self._key_of(message).short,
            attempt,
            exc_info=error,
        )
        return recover(message, error, attempt)

    @property
    def _is_running(self) -> bool:
        return self._starting or (self._runner is not None and not self._runner.ended)

    def _expect_ready(self) -> None:
        if self._is_closed:
            raise UsageError("this consumer is closed; open a new one")
        if self._is_running:
            raise UsageError("this consumer is already running")
        self._process = own_process(self._process)

    @contextlib.contextmanager
    def _begins(self) -> Iterator[None]:
        """Until there is a runner. A `stop` that comes meanwhile is meant for it."""
        self._starting = True
        try:
            yield
        except BaseException:
            self._stop_early = False  # it was meant for this run
            raise
        finally:
            self._starting = False
        early, self._stop_early = self._stop_early, False
        if early:
            self._runner.stop()

    def _warn(self, found: Iterable[SourceProblem]) -> None:
        for one in found:
            _log.warning("consumer %s: %s; %s", self.source.name, one.problem, one.remedy)

    def _closes(self) -> bool:
        """Stop and refuse further runs. False: leave the connections open, because a run that ends
        will close them, or because they belong to the parent process.
        """
        self.stop()
        self._is_closed = True
        if self._is_running:  # without them, what runs could not be acknowledged
            return False
        return self._process in (0, _forking.pid)

    @property
    def report(self) -> Report:
        """What the current or last run has done so far."""
        return Report() if self._runner is None else self._runner.report

    def stop(self) -> None:
        """Finish running handlers, record and acknowledge them, and give back the rest. Call it from any thread.

        Called before the first `run`, or while it connects, it ends that `run` at once.
        """
        if self._runner is None or self._starting:
            self._stop_early = True
        if self._runner is not None:
            self._runner.stop()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.source.name} {self._claims._place()}>"

    def __reduce__(self) -> NoReturn:
        raise stays_here(self)


def _check_function(name: str, given: object, *arguments: str) -> None:
    """Refuse an async function or a generator: it is called without await, so it would fail for every message."""
    if given is None:
        return
    expect(callable(given), name, given, "use a function")
    if profile_of(given).problem:  # type: ignore[arg-type]
        raise ConfigurationError(f"{name}= is async or a generator: use a plain function")
    expect_shape(given, f"{name}=", *arguments)  # type: ignore[arg-type]


def opened(url: object, name: str) -> Source:
    if not isinstance(url, str):
        raise UsageError(f"{name}.open() takes the URL of a broker, not {type(url).__name__}")
    return open_source(url)


def idle_seconds(given: Duration) -> float:
    found = seconds(given, "idle")
    expect(found > 0, "idle", given, "use more than 0: brokers need time to send, for example 1.0")
    return found
