"""Searching records: the conditions of a search, and the flows that read, count and list what matches.

conditions(given, now)      what a caller asked for (``state="held", since="2h"``) as fields of a `Filter`
Browsing                    all that match, newest first, a page at a time
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from itertools import islice
from string import hexdigits
from typing import Any, Final, TypeAlias, TypedDict, TypeVar

from .._values.records import AuditEntry, Cause, Record, State
from .._values.settings import Duration, seconds
from ..errors import TwicesafeError, UsageError
from .commands import Flow, PerformMany
from .operations import bad_cursor, check_limit, page_of
from .protocol import AuditLog, Browse, Count, Page, Survey

__all__ = [
    "MOST",
    "QUESTIONS",
    "Browsing",
    "Conditions",
    "Question",
    "When",
    "audit_log",
    "browse",
    "conditions",
    "count",
    "named_ids",
    "together",
]

E = TypeVar("E", bound=StrEnum)

PAGE: Final = 200
LARGEST_PAGE: Final = 10_000
"""Records that `records` reads at once: each page is twice as large as the one before. On Redis a
page is a scan of all keys, so a long list in small pages would take hours."""

MOST: Final = 2**31 - 1

When: TypeAlias = Duration | datetime
"""A time: how long ago (seconds, a timedelta, ``"2h"``), or a datetime with a time zone."""


class Conditions(TypedDict, total=False):
    """Which records: those that meet all given conditions."""

    state: State | str | Iterable[State | str] | None
    """In this state, or in one of several."""
    scope: Iterable[str]
    """The key's full scope starts with these parts."""
    value: str | None
    """The key's value is exactly this one, in any scope."""
    error: str | None
    """The recorded error starts with this text, such as ``"TimeoutError"``."""
    since: When | None
    """The record was last changed within this time, or since this moment."""
    older_than: When | None
    """The record was last changed longer ago than this, or before this moment."""
    stuck: bool
    """In progress, and the lease is over: the worker crashed or hangs, and no delivery came since."""
    cause: Cause | str | None
    """The handler was last started again for this reason, such as ``"lease_expired"``."""
    id: str | None
    """The hex digits of the key's id start with these, as errors and logs show them."""


_EMPTY: Final = {"value": "no key has an empty value", "error": "every error starts with it"}
"""Why an empty text is refused: it may be a variable that is not set, and must not match everything."""


def conditions(given: Mapping[str, Any], now: int) -> dict[str, Any]:
    """What was asked for, as fields of a `Filter`. ``now``: the caller's clock; hours ago may be seconds off."""
    unknown = sorted(set(given) - set(Conditions.__annotations__))
    if unknown:
        known = ", ".join(Conditions.__annotations__)
        raise UsageError(f"there is no condition {unknown[0]!r}: use {known}")
    scope = given.get("scope", ())
    if isinstance(scope, str):
        raise UsageError(f"scope={scope!r} is not valid: use a tuple of its first parts")
    scope = tuple(scope)
    for part in scope:
        _text(part, "scope")
    for name, why in _EMPTY.items():
        if given.get(name) == "":
            raise UsageError(f"{name}='' is not valid: {why}")
        if given.get(name) is not None:
            _text(given[name], name)
    return {
        "states": _states(given.get("state")),
        "scope": scope,
        "value": given.get("value"),
        "error": given.get("error"),
        "changed_after": moment_of(given.get("since"), "since", now),
        "changed_before": moment_of(given.get("older_than"), "older_than", now),
        "stuck": bool(given.get("stuck", False)),
        "cause": None if given.get("cause") is None else _member(Cause, given["cause"], "cause"),
        "digits": _digits(given.get("id")),
    }


def _text(given: Any, name: str) -> None:
    try:
        given.encode()
    except (AttributeError, UnicodeEncodeError):
        raise UsageError(f"{name}={given!r} is not valid: use text (valid Unicode)") from None


def _states(given: Any) -> tuple[State, ...]:
    if given is None:
        return ()
    several = (given,) if isinstance(given, str) else given
    return tuple(_member(State, state, "state") for state in several)


def _member(kind: type[E], given: Any, name: str) -> E:
    try:
        return kind(given)
    except ValueError:
        known = ", ".join(kind)
        raise UsageError(f"{name}={given!r} is not valid: use one of {known}") from None


def _digits(given: Any) -> str:
    if given is None:
        return ""
    if not isinstance(given, str) or not 0 < len(given) <= 64 or not set(given) <= set(hexdigits):
        raise UsageError(f"id={given!r} is not valid: use the first hex digits of an id")
    return given.lower()


def moment_of(when: Any, name: str, now: int) -> int | None:
    """A time in milliseconds; None: it was not given."""
    if when is None:
        return None
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise UsageError(
                f"{name}={when!r} has no time zone: use datetime.now(UTC) or a duration"
            )
        return round(when.timestamp() * 1000)
    return now - round(seconds(when, name) * 1000)


def browse(
    asked: Mapping[str, Any], limit: int, after: str, tell: Callable[[Collection[str]], None]
) -> Flow[tuple[list[Record], str]]:
    """``tell`` gets the ids of unreadable records, if there are any."""
    check_limit(limit)
    page = yield from page_of(Browse(limit, **asked, after=after))
    if page.unreadable:
        tell(page.unreadable)
    return page.view(), page.after


def count(asked: Mapping[str, Any], up_to: int | None) -> Flow[int]:
    if up_to is not None:
        check_limit(up_to, "up_to")
    return (yield Count(MOST if up_to is None else up_to, **asked))  # type: ignore[no-any-return]


def audit_log(limit: int, since: When | None, now: int) -> Flow[list[AuditEntry]]:
    check_limit(limit)
    return (yield AuditLog(limit, moment_of(since, "since", now) or 0))  # type: ignore[no-any-return]


Question: TypeAlias = Survey | Browse | Count | AuditLog
QUESTIONS: Final = frozenset({Survey, Browse, Count, AuditLog})
"""Requests that read many records, and write nothing."""


def together(asks: Iterable[Question], in_one: bool) -> Flow[list[Any]]:
    """The answers to several questions. ``in_one``: this store answers them all with one look at its records."""
    answers: list[Any] = []
    try:
        if in_one:
            answers = yield PerformMany(list(asks))
        else:
            for ask in asks:
                answers.append((yield ask))
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
    except TwicesafeError:
        raise  # a ConfigurationError is a ValueError too
    except (ValueError, OverflowError) as error:
        raise bad_cursor() from error
    return answers


def named_ids(ids: Collection[str], most: int = 5) -> str:
    """The first ids, shortened as in logs and errors."""
    return ", ".join(id_[:8] for id_ in islice(ids, most)) + "…" * (len(ids) > most)


class Browsing:
    """All records of a search, a page at a time: the caller runs `page` while there is something `left`."""

    def __init__(
        self,
        asked: Mapping[str, Any],
        limit: int | None,
        tell: Callable[[Collection[str]], None] | None = None,
    ) -> None:
        """``tell`` gets the ids of unreadable records, page by page, each once."""
        if limit is not None:
            check_limit(limit)
        self._asked = asked
        self._limit = limit
        self._tell = tell
        self._after = ""
        self._size = PAGE
        self.left = True
        self.unreadable: dict[str, None] = {}
        """Ids, in hex, of records that cannot be read."""

    def page(self) -> Flow[Page]:
        size = self._size if self._limit is None else min(self._size, self._limit)
        self._size = min(2 * self._size, LARGEST_PAGE)
        return page_of(Browse(size, **self._asked, after=self._after))

    def took(self, page: Page) -> list[Record]:
        records, self._after = page.view(), page.after
        new = [id_ for id_ in page.unreadable if id_ not in self.unreadable]
        self.unreadable |= dict.fromkeys(new)
        if new and self._tell is not None:
            self._tell(new)
        if self._limit is not None:
            self._limit -= len(records)
        self.left = bool(self._after) and self._limit != 0
        return records
