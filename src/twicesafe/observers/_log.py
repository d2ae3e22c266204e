"""`LogObserver`: one structured line per decision, at a level that fits what an operator must do.

    DEBUG     what every delivery does: started, waited, relayed
    INFO      an answer: completed, replayed, refused as a duplicate. Duplicates are normal
    WARNING   look at it during the day: a failure, a takeover, a mismatch, a result that was not kept
    ERROR     act now: held, parked, a lost lease, an unprotected run, a store that does not answer

Lines contain the short form of the key (`Key.short`), never its text, and never a payload.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import msgspec

from .. import events as ev
from .._values.keys import Key
from ._metric_table import REFUSALS

__all__ = ["LEVELS", "LogObserver"]

LEVELS: Final[dict[type[ev.Event], int]] = {
    ev.Started: logging.DEBUG,
    ev.Waited: logging.DEBUG,
    ev.Relayed: logging.DEBUG,
    ev.StepRecorded: logging.DEBUG,
    ev.StepReplayed: logging.DEBUG,
    ev.StoreSampled: logging.DEBUG,
    ev.OutboxSampled: logging.DEBUG,
    ev.Completed: logging.INFO,
    ev.Replayed: logging.INFO,
    ev.Refused: logging.INFO,
    ev.RunSuspended: logging.INFO,
    ev.Swept: logging.INFO,
    ev.Responded: logging.INFO,
    ev.TakenOver: logging.WARNING,
    ev.Failed: logging.WARNING,
    ev.Compensated: logging.WARNING,
    ev.RenewalFailed: logging.WARNING,
    ev.ResultNotKept: logging.WARNING,
    ev.ResultUnreadable: logging.ERROR,
    ev.PublishFailed: logging.WARNING,
    ev.BrokerFailed: logging.WARNING,
    ev.BreakerChanged: logging.WARNING,
    ev.NearDuplicate: logging.WARNING,
    ev.FellBack: logging.ERROR,
    ev.UpstreamFailed: logging.WARNING,
    ev.RenewalRefused: logging.ERROR,
    ev.LeaseLost: logging.ERROR,
    ev.Held: logging.ERROR,
    ev.Parked: logging.ERROR,
    ev.LaneParked: logging.ERROR,
    ev.DeadLettered: logging.ERROR,
    ev.StoreFailed: logging.ERROR,
    ev.Unprotected: logging.ERROR,
}
"""The level of each event. Those that are not here are parts of another: they are not logged."""

_HIDDEN: Final = frozenset({"origin"})


class LogObserver:
    """Logs to ``logger`` (by default ``twicesafe.events``).

    The message is ``replayed key=1f2e3d4c age=12.5 cached=false``; with ``json`` it is one JSON
    object. The same fields are in ``record.twicesafe``, for your own formatter.
    """

    logs_warnings = True
    """It logs what `events._notifying.log_warnings` would."""

    def __init__(self, logger: logging.Logger | str | None = None, *, json: bool = False) -> None:
        named = logger if isinstance(logger, str) else "twicesafe.events"
        self._logger = logger if isinstance(logger, logging.Logger) else logging.getLogger(named)
        self._json = json
        self.subscriptions = {kind: self._logs_at(level) for kind, level in LEVELS.items()}
        self.subscriptions[ev.Refused] = self._refused

    def __call__(self, event: ev.Event) -> None:
        logs = self.subscriptions.get(type(event))
        if logs is not None:
            logs(event)

    def _logs_at(self, level: int) -> Callable[[Any], None]:
        """Logs an event at this level. Most levels are off, so that is asked first, and nothing else."""
        is_on, log = self._logger.isEnabledFor, self._log

        def logs(event: ev.Event) -> None:
            if is_on(level):
                log(level, event)

        return logs

    def _refused(self, event: ev.Refused) -> None:
        is_mismatch = REFUSALS.get(event.reason) == "mismatch"
        level = logging.WARNING if is_mismatch else LEVELS[ev.Refused]
        if self._logger.isEnabledFor(level):
            self._log(level, event)

    def _log(self, level: int, event: ev.Event) -> None:
        fields = fields_of(event)
        text = _as_json(fields) if self._json else _as_text(fields)
        self._logger.log(level, "%s", text, extra={"twicesafe": fields})


def fields_of(event: ev.Event) -> dict[str, Any]:
    """The event's name in words, then what it says; empty fields are left out."""
    fields: dict[str, Any] = {"event": _words(type(event).__name__)}
    for name in event.__struct_fields__:
        value = getattr(event, name)
        if value is None or value == "" or name in _HIDDEN:
            continue
        fields[name] = value.short if isinstance(value, Key) else _rounded(value)
    return fields


def _words(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")


def _rounded(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value


def _as_json(value: Any) -> str:
    with suppress(
        UnicodeEncodeError
    ):  # a lone surrogate: text that was not valid where it came from
        text = msgspec.json.encode(value).decode()
        if text.isprintable():
            return text
    # JSON may contain what a terminal interprets, such as C1 controls and bidi marks.
    return json.dumps(msgspec.to_builtins(value), separators=(",", ":"))


def _as_text(fields: dict[str, Any]) -> str:
    return " ".join(
        str(value) if name == "event" else f"{name}={_quoted(value)}"
        for name, value in fields.items()
    )


def _quoted(value: Any) -> str:
    """As it is, or as JSON if it has spaces or quotes: then the line can still be split."""
    if isinstance(value, str) and value.isprintable() and not set(value) & {" ", '"', "="}:
        return value
    return _as_json(value)
