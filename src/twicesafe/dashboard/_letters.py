"""Dead letters on the dashboard: which are chosen, how many an action would change, and what really happened.

The work is done by `DeadLetters`, as on the command line. An action is about the letters that its own look
finds: if there are more than were confirmed, nothing is changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from .._core.commands import Flow
from .._edges.readable import visible
from .._values.quantities import counted
from ..consumers import DeadLetters, Letter
from ..consumers._letters import LetterFilter
from ..errors import UsageError
from ._access import Access
from ._actions import AppliedAction
from ._backend import Backend
from ._forms import Signed, number

__all__ = ["LETTER_ACTIONS", "Choice", "LetterAction", "act_on_letters", "look"]

MOST: Final = 1000
"""The oldest letters, among which an action chooses."""
LONGEST: Final = 1024

_log = logging.getLogger("twicesafe.dashboard")


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterAction:
    name: str
    title: str
    meaning: str


LETTER_ACTIONS: Final = {
    action.name: action
    for action in (
        LetterAction(
            name="replay",
            title="Replay",
            meaning="Release its key and send it back to where it came from. It runs under its old key.",
        ),
        LetterAction(
            name="discard",
            title="Discard",
            meaning="Delete it. Its key stays parked, so a repeat does not run.",
        ),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which letters, as the URL says it. Empty fields match every letter."""

    letter: str = ""
    """`Letter.digits` of one."""
    topic: str = ""
    reason: str = ""
    """Text in the reason."""

    @classmethod
    def read(cls, query: Iterable[tuple[str, str]], access: Access) -> Choice:
        given = {
            name: text for name, text in query if name in ("letter", "topic", "reason") and text
        }
        if "reason" in given and not access.show_keys:  # its matches tell the text, piece by piece
            raise UsageError("you may not see reasons, so you cannot filter by them")
        return cls(**{name: text[:LONGEST] for name, text in given.items()})

    @property
    def which(self) -> LetterFilter:
        ids = (self.letter,) if self.letter else ()
        return LetterFilter(ids, self.reason or None, self.topic or None)

    def fields(self) -> list[tuple[str, str]]:
        given = ("letter", self.letter), ("topic", self.topic), ("reason", self.reason)
        return [(name, text) for name, text in given if text]

    def url(self) -> str:
        return f"?{urlencode(self.fields())}" if self.fields() else ""

    def words(self) -> str:
        found = ["one letter" if self.letter else ""]
        found += [f"from {visible(self.topic)}" if self.topic else ""]
        found += [f"reason contains {visible(self.reason)}" if self.reason else ""]
        return ", ".join(filter(None, found)) or "every letter"


async def look(backend: Backend, choice: Choice, most: int = MOST) -> tuple[list[Letter], bool]:
    """The letters that are chosen, and whether there may be more of them than were read."""
    found = await backend.letters(most)
    return list(filter(choice.which, found)), len(found) >= most


async def act_on_letters(
    backend: Backend, action: LetterAction, choice: Choice, who: Signed, form: Mapping[str, str]
) -> AppliedAction:
    url, loop = backend.letters_url, asyncio.get_running_loop()
    assert url is not None

    def run(flow: Flow[Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(backend.act(flow), loop).result()

    def work() -> AppliedAction:
        with DeadLetters.open(url) as dead:
            chosen = list(filter(choice.which, dead.look(MOST)))
            if len(chosen) > number(form.get("count", "")):
                return _more(len(chosen), form.get("count", ""))
            digits = {one.digits for one in chosen}
            given: dict[str, Any] = {"by": who.by, "why": who.why, "limit": MOST, "run": run}
            given["chosen"] = lambda one: one.digits in digits
            if action.name == "replay":
                done = dead.replay(backend.receiver, **given)
                return _replayed(len(chosen), done.replayed, len(done.held))
            gone = dead.discard(backend.receiver, **given)
            return _discarded(gone.discarded, len(gone.unaudited))

    result = await backend.alone(work)
    _log.info(
        "%s %s dead letters (%s): %s: %s",
        *(visible(who.by), action.name, choice.words(), result.title, visible(who.why)),
    )
    return result


def _more(found: int, confirmed: str) -> AppliedAction:
    return AppliedAction(
        changed=False,
        title="Nothing was changed",
        details=(
            f"{counted(found, 'letter')} match now, and you confirmed {visible(confirmed) or 'no number'}.",
            "Look at the new count, then confirm again.",
        ),
    )


def _replayed(chosen: int, replayed: int, held: int) -> AppliedAction:
    details = []
    if replayed:
        details.append("Each goes back to where it came from and runs under its old key.")
        details.append("The audit has each release of a key, with your name and reason.")
    if held:
        details.append(
            f"{counted(held, 'letter')} stayed: the outcome of the key is unknown. Resolve or release it first."
        )
    if gone := chosen - replayed - held:
        details.append(f"{counted(gone, 'letter')} gone or held by another consumer meanwhile.")
    title = f"{counted(replayed, 'letter')} replayed" if replayed else "Nothing was changed"
    return AppliedAction(changed=bool(replayed), title=title, details=tuple(details))


def _discarded(discarded: int, unaudited: int) -> AppliedAction:
    if not discarded:
        words = "This letter no longer exists."
        return AppliedAction(changed=False, title="Nothing was changed", details=(words,))
    details = ["The keys stay parked: a late repeat does not run."]
    if unaudited < discarded:
        details.append("The audit has it with your name and reason.")
    if unaudited:
        shown = counted(unaudited, "letter")
        details.append(
            f"{shown} without a record in this store: that is in the log of this process only."
        )
    return AppliedAction(
        changed=True, title=f"{counted(discarded, 'letter')} discarded", details=tuple(details)
    )
