"""Events: what happens, told to observers as it happens.

An observer is a callable that takes one event; it runs in the caller's way, so it must be quick
and its errors are swallowed (and logged). Events carry the key object, never results.
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
    """A handler starts: attempt 1, or a later one with its cause."""

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
    """The handler raised. ``remembered``: the failure is now the answer."""

    key: Key
    error: str
    attempt: int
    remembered: bool


class Replayed(Event, frozen=True):
    """A duplicate got the first answer. ``age``: seconds since completion, where known."""

    key: Key
    age: float | None
    cached: bool = False


class Waited(Event, frozen=True):
    """A duplicate waited for running work."""

    key: Key
    seconds: float


class Refused(Event, frozen=True):
    """A delivery was answered without running: ``reason`` is the error's class name."""

    key: Key
    reason: str


class LeaseLost(Event, frozen=True):
    """A worker finished, but its claim was gone: its result was not recorded."""

    key: Key


class RenewalFailed(Event, frozen=True):
    """One renewal did not reach the store; the keeper goes on trying."""

    key: Key
    error: str


class ResultNotKept(Event, frozen=True):
    """Done, but the result was too large, not storable, or refused by the store."""

    key: Key
    reason: str


class StoreFailed(Event, frozen=True):
    """The store did not answer, or answered with an error."""

    key: Key | None
    operation: str
    error: str


class Unprotected(Event, frozen=True):
    """The handler ran without a claim, because ``outage="run"`` says so."""

    key: Key


class Held(Event, frozen=True):
    """A key is held: whether its work was done is unknown. An operator must resolve or release it."""

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
    """So many messages of an outbox were published, and their rows are gone."""

    count: int


class PublishFailed(Event, frozen=True):
    """A broker or a handler refused a message; its lane rests before the next attempt."""

    message_id: str
    topic: str
    attempt: int
    error: str


class LaneParked(Event, frozen=True):
    """A message was refused too often: its lane waits for an operator. Others go on."""

    message_id: str
    topic: str
    attempt: int
    error: str


class BrokerFailed(Event, frozen=True):
    """The broker took none of these messages; all of them are tried again after ``delay`` seconds."""

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
    """The observer that every receiver has: what an operator must know goes to the log."""
    if isinstance(event, _WARNINGS):
        details = " ".join(
            f"{name}={value.short if isinstance(value, Key) else value}"
            for name, value in msgspec.structs.asdict(event).items()
        )
        _log.warning("%s %s", type(event).__name__, details)


def notifier(observers: Sequence[Observer]) -> Callable[[Event], None]:
    """One callable that tells all observers, and survives each of them."""
    everyone = (log_warnings, *observers)

    def notify(event: Event) -> None:
        for observer in everyone:
            try:
                observer(event)
            except Exception:
                _log.exception("an observer failed on %s", type(event).__name__)

    return notify
