"""How events reach observers, and what an observer may be: a callable, and perhaps a tracer.

An observer that raises stops neither the work nor the other observers.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import msgspec

from .._values.keys import Key
from .._values.settings import expect
from ._kinds import (
    BreakerChanged,
    BrokerFailed,
    DeadLettered,
    Event,
    FellBack,
    Held,
    LaneParked,
    LeaseLost,
    Parked,
    PublishFailed,
    RenewalFailed,
    RenewalRefused,
    ResultNotKept,
    ResultUnreadable,
    StoreFailed,
    Unprotected,
)

__all__ = [
    "CarefulTracer",
    "Observer",
    "Tracer",
    "checked",
    "log_warnings",
    "notifier",
    "tracer_of",
]

_log = logging.getLogger("twicesafe")


Observer: TypeAlias = Callable[[Event], object]


@runtime_checkable
class Tracer(Protocol):
    """What an observer needs to also trace handlers."""

    def trace(self, key: Key, run: Callable[[], Any]) -> Callable[[], Any]:
        """`run`, wrapped so that the handler runs in a span, which becomes the claim's `origin`.

        An async handler returns a coroutine.
        """
        ...

    def origin(self) -> bytes:
        """The current trace, at most 64 bytes, for claims by hand; empty: there is none."""
        ...


def tracer_of(observers: Sequence[Observer]) -> CarefulTracer | None:
    """The first observer that traces."""
    candidates: Sequence[object] = observers
    found = next((one for one in candidates if isinstance(one, Tracer)), None)
    return None if found is None else CarefulTracer(found)


class CarefulTracer:
    """A tracer that raises does not stop the work, like any other observer."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def run(self, key: Key, run: Callable[[], Any]) -> Any:
        """Run the handler in its span. The tracer is asked now, not when the call is made: a duplicate runs none."""
        try:
            traced = self._tracer.trace(key, run)
        except Exception:
            _log.exception("a tracer failed; the handler runs without a span")
            traced = run
        return traced()

    def trace_message(
        self, headers: Mapping[str, str], run: Callable[..., Any]
    ) -> Callable[..., Any]:
        """The handler of a message, in the trace of its producer; a tracer need not have it."""
        trace: Callable[..., Callable[..., Any]] | None = getattr(
            self._tracer, "trace_message", None
        )
        try:
            return run if trace is None else trace(headers, run)
        except Exception:
            _log.exception("a tracer failed; the message is handled outside its producer's trace")
            return run

    def trace_step(self, key: Key, name: str, run: Callable[[], Any]) -> Callable[[], Any]:
        """Of a step of a durable run; a tracer need not have it."""
        trace: Callable[..., Callable[[], Any]] | None = getattr(self._tracer, "trace_step", None)
        try:
            return run if trace is None else trace(key, name, run)
        except Exception:
            _log.exception("a tracer failed; the step runs without a span")
            return run

    def origin(self) -> bytes:
        try:
            return self._tracer.origin()
        except Exception:
            _log.exception("a tracer failed; the claim has no origin")
            return b""


_WARNINGS = frozenset(
    {
        BreakerChanged,
        BrokerFailed,
        DeadLettered,
        FellBack,
        Held,
        LaneParked,
        LeaseLost,
        Parked,
        PublishFailed,
        RenewalFailed,
        RenewalRefused,
        ResultNotKept,
        ResultUnreadable,
        StoreFailed,
        Unprotected,
    }
)


def log_warnings(event: Event) -> None:
    """The built-in observer: logs the events that an operator must know about."""
    details = " ".join(
        f"{name}={value.short if isinstance(value, Key) else _printable(str(value))}"
        for name, value in msgspec.structs.asdict(event).items()
    )
    _log.warning("%s %s", type(event).__name__, details)


def _printable(text: str) -> str:
    """A reason may quote what a sender sent, with line breaks and escapes."""
    return text if text.isprintable() else ascii(text)[1:-1]


class _LogWarnings:
    def __init__(self) -> None:
        self.subscriptions = dict.fromkeys(_WARNINGS, log_warnings)

    def __call__(self, event: Event) -> None:
        if type(event) in _WARNINGS:
            log_warnings(event)


def checked(observers: Any) -> tuple[Observer, ...]:
    """These observers, if each can be called with an event; a class would be called to make an object."""
    remedy = "use a list of observers, such as [LogObserver()]"
    expect(isinstance(observers, Iterable), "observers", observers, remedy)
    found = tuple(observers)
    for each in found:
        expect(callable(each) and not isinstance(each, type), "observers", found, remedy)
        is_async = any(map(inspect.iscoroutinefunction, (each, each.__call__)))
        expect(not is_async, "observers", found, "use a plain function: nothing awaits an observer")
    return found


def notifier(observers: Sequence[Observer]) -> Callable[[Event], None]:
    """One callable that notifies all observers; one that raises does not stop the others.

    An observer with ``logs_warnings`` logs them in place of `log_warnings`. Its ``renew()``: an
    observer has other ``subscriptions`` now. Its ``add(observer)``: notify this one, too.
    """
    observers = checked(observers)
    logged = any(getattr(observer, "logs_warnings", False) for observer in observers)
    receivers: list[Observer] = [*([] if logged else [_LogWarnings()]), *observers]
    interested: dict[type[Event], tuple[Observer, ...]] = {}

    def notify(event: Event) -> None:
        kind = type(event)
        calls = interested.get(kind)
        if calls is None:
            calls = interested[kind] = tuple(_call_for(kind, receivers))
        for call in calls:
            try:
                call(event)
            except Exception:
                _log.exception("an observer failed on %s", kind.__name__)

    def add(observer: Observer) -> None:
        receivers.append(observer)
        interested.clear()

    notify.renew, notify.add = interested.clear, add  # type: ignore[attr-defined]
    return notify


def _call_for(kind: type[Event], observers: Iterable[Observer]) -> Iterator[Observer]:
    """What to call for this kind of event. An observer with ``subscriptions`` names the kinds that
    it wants, and what to call for each; any other observer gets all events."""
    for observer in observers:
        wanted: Mapping[type[Event], Observer] | None = getattr(observer, "subscriptions", None)
        if wanted is None:
            yield observer
        elif kind in wanted:
            yield wanted[kind]
