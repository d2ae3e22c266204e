"""What both relays share: the settings, the publisher, one `RelayState` per run, and clear errors.

A relay needs an open store; `open` needs the URL of one. Callers mix these up, and they mix up
store and publisher. Each mistake has an error that shows the right call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn, TypeAlias, TypedDict

from .. import _forking, events
from .._core.outbox.publisher import Publisher, keeps_order
from .._core.outbox.relay_lease import RelayState
from .._core.outbox.requests import Message
from .._values.cipher import Cipher
from .._values.clocks import since_boot
from .._values.policy import Backoff
from .._values.settings import Duration, check_methods, expect, is_whole, seconds
from ..errors import ConfigurationError, UsageError, stays_here
from ..stores import _urls as store_urls
from .publishers import _urls as publisher_urls
from .publishers._function import CallablePublisher, publisher_of

__all__ = [
    "BACKOFF",
    "AnyPublisher",
    "RelayBase",
    "RelaySettings",
    "expect_url",
    "hangs",
    "publisher_from",
    "runtime",
    "tell_end",
]

_log = logging.getLogger("twicesafe")

BACKOFF: Final = Backoff(first=0.5, factor=2, most=60)

AnyPublisher: TypeAlias = Publisher | Callable[[Message], object] | str
"""A publisher, a function of one message, or the URL of a broker."""


class RelaySettings(TypedDict, total=False):
    """The settings that `open` passes on to the relay."""

    lease: Duration
    batch: int
    concurrency: int | None
    max_attempts: int
    backoff: Backoff
    publish_timeout: Duration
    observers: Sequence[events.Observer]
    encryption: Cipher | None


class RelayBase:
    """What both relays share: the publisher, the settings, and one `RelayState` per run."""

    def __init__(
        self,
        publisher: Any,
        lease: Duration,
        batch: int,
        concurrency: int | None,
        max_attempts: int,
        backoff: Backoff,
        publish_timeout: Duration,
        observers: Sequence[events.Observer],
        encryption: Cipher | None = None,
    ) -> None:
        self.publisher = publisher_from(publisher)
        self._lease = seconds(lease, "lease")
        expect(self._lease >= 0.3, "lease", lease, "use at least 0.3 seconds")
        self._publish_timeout = seconds(publish_timeout, "publish_timeout")
        expect(self._publish_timeout > 0, "publish_timeout", publish_timeout, "use more than 0")
        expect(isinstance(backoff, Backoff), "backoff", backoff, "use a Backoff(…)")
        check_methods(encryption, "encryption", ("encrypt", "decrypt"))
        given: dict[str, object] = {
            "batch": batch,
            "max_attempts": max_attempts,
            "concurrency": self.publisher.concurrency if concurrency is None else concurrency,
        }
        for name, number in given.items():
            expect(is_whole(number), name, number, "use 1 or more")
        self._batch, self._max_attempts, self._backoff = batch, max_attempts, backoff
        self._concurrency = concurrency or self.publisher.concurrency
        self._notify = events.notifier(observers)
        self._observed = bool(observers)
        self._cipher = encryption
        self._process = 0
        """The process whose connection the publisher has; 0: none yet."""
        self._before = 0
        self._state: RelayState | None = None
        """The state of this run, or of the last one."""

    store: Any
    _runner: Any

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.store.url} to {type(self.publisher).__name__}>"

    @property
    def published(self) -> int:
        """The number of messages that this relay has published and removed so far."""
        return self._before + (0 if self._state is None else self._state.published)

    def _drained(self, before: int) -> int:
        """The number published since `before`; raises if messages are left because of an outage."""
        if self._state is not None:
            failure = self._state.outage or self._state.not_now
            if failure is not None:
                raise failure
        return self.published - before

    def _begins(self) -> None:
        """Refuse two runs at once, and the connection of a parent process. A plain function has none."""
        from .._runtime.adapting import own_process

        if type(self.publisher) is not CallablePublisher:
            self._process = own_process(self._process)
        if self._runner is not None:
            raise UsageError("this relay is already running")

    def _is_parents(self) -> bool:
        """The publisher's connection belongs to the parent process: leave it open."""
        return self._process not in (0, _forking.pid)

    def _new_state(self, wake: bool, until_empty: bool) -> RelayState:
        self._before, self._state = self.published, None
        self._state = state = RelayState(
            lease=self._lease,
            batch=self._batch,
            group=self.publisher.batch,
            concurrency=self._concurrency,
            max_attempts=self._max_attempts,
            backoff=self._backoff,
            publish_timeout=self._publish_timeout,
            wake=wake,
            clock=since_boot,
            notify=self._notify,
            observed=self._observed,
            checks=callable(getattr(self.publisher, "check", None)),
            keeps_order=keeps_order(self.publisher),
            cipher=self._cipher,
        )
        state.until_empty = until_empty
        return state

    def __reduce__(self) -> NoReturn:
        raise stays_here(self)


# --- what a relay is made from -------------------------------------------------------------------


def publisher_from(given: AnyPublisher) -> Publisher:
    """The publisher for a relay's argument. It connects on first use."""
    if not isinstance(given, str):
        return publisher_of(given)  # type: ignore[no-any-return]
    if _is_only_in(given, store_urls.SCHEMES, publisher_urls.SCHEMES):
        raise ConfigurationError(
            f"{store_urls.mask(given)} is a store, not a publisher: pass the store first, "
            "then the publisher"
        )
    return publisher_urls.open_publisher(given)


def expect_url(given: object, relay: str) -> str:
    """The store URL for `open`; anything else is refused with the right call."""
    if not isinstance(given, str):
        raise UsageError(
            f"{relay}.open() takes the URL of a store, not {type(given).__name__}: with an open "
            f"store, use {relay}(store, publisher)"
        )
    if _is_only_in(given, publisher_urls.SCHEMES, store_urls.SCHEMES):
        raise ConfigurationError(
            f"{store_urls.mask(given)} is a publisher, not a store: pass the store first, "
            f"{relay}.open(store_url, publisher_url)"
        )
    return given


def _is_only_in(url: str, schemes: dict[str, str], others: dict[str, str]) -> bool:
    scheme = url.partition(":")[0]
    return scheme in schemes and scheme not in others


def hangs(grace: float) -> TimeoutError:
    """For a `stop` that did not end in time."""
    return TimeoutError(
        f"the publisher did not return within grace={grace:g} s, and the relay still waits for it; check the "
        "broker, then call stop again; if the process exits now, these messages may be published again"
    )


def tell_end(error: BaseException) -> None:
    """Log that a relay ends by itself. Its owner gets the error from `stop`, perhaps much later."""
    _log.error("the relay has ended by an error and publishes nothing more", exc_info=error)


def runtime() -> Any:
    """Imported when a relay is made, so that `import twicesafe` stays quick."""
    from .._runtime import relay_runner

    return relay_runner
