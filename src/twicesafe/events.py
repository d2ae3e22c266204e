"""Events that observers receive as they happen.

An observer is a callable that takes one event. It runs in the caller's thread, so it must be quick.
Its errors are logged and swallowed. Events contain the key object, never results.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from ._values.keys import Key
from ._values.records import Cause

__all__ = [
    "BrokerFailed",
    "Completed",
    "Event",
    "Failed",
    "Held",
    "LaneParked",
    "LeaseLost",
    "Observer",
    "Parked",
    "PublishFailed",
    "Refused",
    "Relayed",
    "RenewalFailed",
    "Replayed",
    "ResultNotKept",
    "Started",
    "StoreFailed",
    "Swept",
    "TakenOver",
    "Unprotected",
    "Waited",
    "notifier",
]


class Event(msgspec.Struct, frozen=True):
    """Base of all events."""


class Started(Event, frozen=True):
    """A handler starts. ``cause``: why it runs again; None on the first attempt."""

    key: Key
    attempt: int
    cause: Cause | None


class TakenOver(Event, frozen=True):
    """A handler starts because another worker's lease ran out."""

    key: Key
    attempt: int


class Completed(Event, frozen=True):
    """The handler returned and the store confirmed its record."""

    key: Key
    seconds: float


class Failed(Event, frozen=True):
    """The handler raised. ``remembered``: the failure was recorded as the key's answer."""

    key: Key
    error: str
    attempt: int
    remembered: bool


class Replayed(Event, frozen=True):
    """A duplicate got the recorded answer. ``age``: seconds since completion, if known."""

    key: Key
    age: float | None
    cached: bool = False


class Waited(Event, frozen=True):
    """A duplicate waited for a delivery in progress."""

    key: Key
    seconds: float


class Refused(Event, frozen=True):
    """A delivery was answered without running: ``reason`` is the error's class name."""

    key: Key
    reason: str


class LeaseLost(Event, frozen=True):
    """A worker finished after losing its claim; its result was not recorded."""

    key: Key


class RenewalFailed(Event, frozen=True):
    """A lease renewal failed; the lease keeper retries."""

    key: Key
    error: str


class ResultNotKept(Event, frozen=True):
    """The work is done, but its result was too large, not storable, or refused by the store."""

    key: Key
    reason: str


class StoreFailed(Event, frozen=True):
    """The store did not answer, or returned an error."""

    key: Key | None
    operation: str
    error: str


class Unprotected(Event, frozen=True):
    """The store was down and the handler ran without a claim (``outage="run"``)."""

    key: Key


class Held(Event, frozen=True):
    """A key is held: its outcome is unknown. An operator must resolve or release it."""

    key: Key
    reason: str


class Parked(Event, frozen=True):
    """A key is parked: its attempts are used up. An operator must resolve or release it."""

    key: Key
    reason: str


class Swept(Event, frozen=True):
    """A sweep ended."""

    removed: int
    examined: int


class Relayed(Event, frozen=True):
    """``count`` outbox messages were published and their rows deleted."""

    count: int


class PublishFailed(Event, frozen=True):
    """The broker or the handler refused a message; its lane backs off before the next attempt."""

    message_id: str
    topic: str
    attempt: int
    error: str


class LaneParked(Event, frozen=True):
    """A message used up its attempts: its lane waits for an operator. Other lanes continue."""

    message_id: str
    topic: str
    attempt: int
    error: str


class BrokerFailed(Event, frozen=True):
    """The broker accepted none of these messages; the relay retries after ``delay`` seconds."""

    count: int
    error: str
    delay: float


Observer: TypeAlias = Callable[[Event], object]

_log = logging.getLogger("twicesafe")

_WARNINGS = (
    BrokerFailed,
    Held,
    LaneParked,
    LeaseLost,
    Parked,
    PublishFailed,
    RenewalFailed,
    ResultNotKept,
    StoreFailed,
    Unprotected,
)


def log_warnings(event: Event) -> None:
    """The built-in observer: logs the events that an operator must know about."""
    if isinstance(event, _WARNINGS):
        details = " ".join(
            f"{name}={value.short if isinstance(value, Key) else value}"
            for name, value in msgspec.structs.asdict(event).items()
        )
        _log.warning("%s %s", type(event).__name__, details)


def notifier(observers: Sequence[Observer]) -> Callable[[Event], None]:
    """One callable that notifies all observers; one that raises does not stop the others."""
    receivers = (log_warnings, *observers)

    def notify(event: Event) -> None:
        for observer in receivers:
            try:
                observer(event)
            except Exception:
                _log.exception("an observer failed on %s", type(event).__name__)

    return notify
