"""Filters: which keys a page is about. They live in the URL, so that a page can be shared and reloaded.

    ?state=held&state=parked&since=1h      →  Filters  →  receiver.records(state=…, since=…)

A value that cannot be read is not ignored. The page says so and shows no keys, because an operator who acts
on everything that matches must not match more than was asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urlencode

from .._edges.readable import state_words, visible
from .._values.records import Cause, State
from .._values.settings import seconds
from ..errors import ConfigurationError

__all__ = ["AGES", "RERUNS", "Filters"]

LONGEST: Final = 1024
"""Characters of one field."""

_STATES: Final = {state.value: state for state in State}
_CAUSES: Final = {cause.value: cause for cause in Cause}
_TEXTS: Final = ("value", "error", "since", "older_than", "id")
_NAMES: Final = frozenset({"state", "scope", "cause", "stuck", *_TEXTS})

AGES: Final = (
    ("any time", "", ""),
    ("last 15 min", "15m", ""),
    ("last hour", "1h", ""),
    ("last day", "1d", ""),
    ("over an hour ago", "", "1h"),
    ("over a day ago", "", "1d"),
    ("over a week ago", "", "7d"),
)
"""Ages that are offered: the words, ``since`` and ``older_than``."""

RERUNS: Final = (
    ("any start", None),
    ("after a failure", Cause.FAILED),
    ("takeover", Cause.LEASE_EXPIRED),
    ("late duplicate", Cause.RETENTION_EXPIRED),
    ("by an operator", Cause.OPERATOR),
)
"""Reasons of the last start that are offered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """What to look for. Empty fields match everything."""

    states: tuple[State, ...] = ()
    scope: tuple[str, ...] = ()
    """The first parts of the scope."""
    value: str = ""
    """The key's value, in any scope."""
    error: str = ""
    """Type name of the last failure."""
    since: str = ""
    """Changed within this time, as 15m or 7d."""
    older_than: str = ""
    """Changed longer ago than this."""
    stuck: bool = False
    """In progress past the lease."""
    cause: Cause | None = None
    """Why the handler was last started again."""
    id: str = ""
    """First hex digits of the key's id, as logs and errors show them."""
    problem: str = ""
    """What could not be read; such filters match nothing."""

    @classmethod
    def read(cls, query: Iterable[tuple[str, str]]) -> Filters:
        """From the fields of a URL or a form; fields of other names are not filters."""
        states: list[State] = []
        scope: list[str] = []
        text = dict.fromkeys(_TEXTS, "")
        stuck, cause, problem = False, None, ""
        for name, given in query:
            if not given or name not in _NAMES:
                continue
            if len(given) > LONGEST:
                problem = f"{name} is longer than {LONGEST:,} characters"
            elif name == "state":
                if given in _STATES:
                    states.append(_STATES[given])
                else:
                    problem = f"there is no state {visible(given[:40])}"
            elif name == "cause":
                cause = _CAUSES.get(given)
                problem = problem or ("" if cause else f"there is no cause {visible(given[:40])}")
            elif name == "scope":
                scope.append(given)
            elif name == "stuck":
                stuck = given == "yes"
                problem = problem or (
                    "" if stuck else f"stuck is yes or nothing, not {visible(given[:40])}"
                )
            elif text[name] and text[name] != given:
                problem = f"{name} is given twice"
            else:
                text[name] = given if name == "value" else given.strip()
        for name in ("since", "older_than"):
            problem = problem or _wrong_duration(text[name])
        text["id"] = text["id"].lower()
        if not set(text["id"]) <= set("0123456789abcdef"):
            problem = problem or "an id has hex digits only"
        return cls(
            states=tuple(dict.fromkeys(states)),
            scope=tuple(scope),
            stuck=stuck,
            cause=cause,
            problem=problem,
            **text,
        )

    def fields(self) -> list[tuple[str, str]]:
        """For a URL or hidden fields of a form; `read` makes the same filters from them."""
        found = [("state", state.value) for state in self.states]
        found += [("scope", part) for part in self.scope]
        found += [(name, text) for name in _TEXTS if (text := getattr(self, name))]
        found += [("cause", self.cause.value)] if self.cause else []
        return [*found, *([("stuck", "yes")] if self.stuck else [])]

    def url(self, **changes: Any) -> str:
        """The query of these filters with some changed, with its question mark; empty if there is none."""
        found = replace(self, **changes).fields() if changes else self.fields()
        return f"?{urlencode(found)}" if found else ""

    def toggled(self, state: State) -> str:
        """The query with this state added or taken away."""
        others = tuple(each for each in self.states if each is not state)
        return self.url(states=others if state in self.states else (*self.states, state))

    def arguments(self) -> dict[str, Any]:
        """The filters of `receiver.records` and `receiver.count`."""
        return {
            "state": self.states or None,
            "scope": self.scope,
            "value": self.value or None,
            "error": self.error or None,
            "since": self.since or None,
            "older_than": self.older_than or None,
            "stuck": self.stuck,
            "cause": self.cause,
            "id": self.id or None,
        }

    @property
    def is_empty(self) -> bool:
        return self == Filters()

    def words(self) -> str:
        """The filters as a sentence, for pages that act on what they match; without the value."""
        found = [" or ".join(map(state_words, self.states))]
        found += [f"error {visible(self.error)}" if self.error else ""]
        found += [f"changed within {self.since}" if self.since else ""]
        found += [f"unchanged for {self.older_than}" if self.older_than else ""]
        found += ["past its lease" if self.stuck else ""]
        found += [f"re-run, cause {self.cause.value.replace('_', ' ')}" if self.cause else ""]
        found += ["one id" if self.id else ""]
        found += ["in one scope" if self.scope else "", "one value" if self.value else ""]
        return ", ".join(filter(None, found)) or "every key"


def _wrong_duration(text: str) -> str:
    try:
        if text:
            seconds(text, "age")
    except ConfigurationError:
        return f"{visible(text[:40])} is not a duration: write 15m, 12h or 7d"
    return ""
