"""What the model reads: for every state of a call, what happened and what to do next.

    done       it ran now                         → the tool's own result
    replayed   it ran before                      → the recorded result, and "do not call again"
    running    an earlier call has not ended      → ask again in … seconds
    mismatch   the key was used for another call  → which arguments differ
    unknown    it may or may not have happened    → do not call again; a person or the probe decides
    failed     it failed permanently              → do not call again
    not_done   nothing was done                   → what to correct
    waiting    a person must approve it           → ask again later
    refused    a person said no                   → do not call again

The texts are for a model: short, in the second person, with one instruction. `meta` is the same for a
program.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec

from ..._values.keys import Key
from ..._values.signed_key import SignedKey
from ...errors import (
    FingerprintMismatchError,
    HeldError,
    InvalidKeyError,
    ParkedError,
    RememberedFailureError,
    ResultError,
    StillInProgressError,
    StoreError,
    TooManyWaitersError,
    TwicesafeError,
    text_of,
)

__all__ = ["META", "AnswerState", "ToolAnswer", "answer_to", "key_in", "run_in"]

META: Final = "dev.twicesafe/"
"""The prefix of our names in ``_meta``, as MCP asks of extensions."""

AnswerState: TypeAlias = Literal[
    "done",
    "replayed",
    "running",
    "mismatch",
    "unknown",
    "failed",
    "not_done",
    "waiting",
    "refused",
]

_TEXTS: Final[dict[str, str]] = {
    "replayed": (
        "{tool} was already done{at}. This is its recorded result; nothing was run now. Do not call "
        "it again for this."
    ),
    "not kept": (
        "{tool} was already done; its result was not kept. Nothing was run now. Do not call it again "
        "for this."
    ),
    "running": (
        "An earlier call of {tool} for this is not finished, so nothing was started now. Call it "
        "again in {wait} seconds with the same arguments to get its result."
    ),
    "mismatch": (
        "Nothing was run. {tool} was already called for this with other arguments{fields}. If you "
        "meant the same operation, do not call it again. If you mean another one, change what "
        "identifies it."
    ),
    "unknown": (
        "The outcome of {tool} is unknown: it may have happened. Do not call it again, and do not "
        "try to reach the same by other means. {next} (key {key})"
    ),
    "failed": "{tool} failed permanently: {reason}. Do not call it again for this.",
    "not_done": "Nothing was done by {tool}: {reason}.",
    "waiting": (
        "{tool} was not run: a person must approve it first (key {key}). Tell the user, and call it "
        "again with exactly the same arguments after the approval."
    ),
    "refused": "{tool} was not run: a person refused it ({reason}). Do not call it again for this.",
}

_PERSON: Final = "Tell the user that a person must find out what happened."


class ToolAnswer(msgspec.Struct, kw_only=True):
    """The end of one call, before the framework's adapter turns it into its own words."""

    state: AnswerState
    tool: str
    result: Any = None
    """done: what the framework returned. replayed: what was recorded of it."""
    key: Key | None = None
    at: str | None = None
    """replayed: when it was done, in ISO 8601."""
    retry_after: float | None = None
    """Seconds after which the same call may get another answer."""
    fields: tuple[str, ...] = ()
    """mismatch: the arguments that differ, if that is known."""
    reason: str = ""
    is_kept: bool = True
    """replayed: False if only the fact is recorded, and not the result."""

    @property
    def has_result(self) -> bool:
        """True: `result` is the tool's own."""
        return self.state in ("done", "replayed") and self.is_kept

    @property
    def text(self) -> str:
        """For the model; empty if the tool ran now."""
        if self.state == "done":
            return ""
        again = f"Ask again in {_whole(self.retry_after)} seconds; it is being looked up."
        return _TEXTS[self.state if self.is_kept else "not kept"].format(
            tool=self.tool,
            at=f" at {self.at}" if self.at else "",
            wait=_whole(self.retry_after),
            fields=f" (different: {', '.join(self.fields)})" if self.fields else "",
            reason=self.reason.rstrip("."),
            next=_PERSON if self.retry_after is None else again,
            key="-" if self.key is None else self.key.short,
        )

    @property
    def meta(self) -> dict[str, Any]:
        """For programs: what goes into ``_meta``, or what the framework has in its place."""
        found: dict[str, Any] = {"state": self.state, "replayed": self.state == "replayed"}
        if self.key is not None:
            found["key"] = self.key.short
        if self.at is not None:
            found["at"] = self.at
        if self.retry_after is not None:
            found["retry-after"] = self.retry_after
        if self.fields:
            found["fields"] = list(self.fields)
        return {META + name: value for name, value in found.items()}


def answer_to(error: TwicesafeError, tool: str) -> ToolAnswer:
    """The answer for a call that the receiver refused; nothing ran for it."""
    about: dict[str, Any] = {"tool": tool, "key": error.key}
    match error:
        case FingerprintMismatchError():
            return ToolAnswer(state="mismatch", fields=error.fields, **about)
        case StillInProgressError():
            return ToolAnswer(state="running", retry_after=error.retry_after or 1.0, **about)
        case TooManyWaitersError():
            return ToolAnswer(state="running", retry_after=1.0, **about)
        case HeldError():
            return ToolAnswer(state="unknown", **about)
        case ParkedError():
            return ToolAnswer(
                state="failed", reason="it was tried too often without success", **about
            )
        case RememberedFailureError():
            reason = error.original_message or error.type_name or error.message
            return ToolAnswer(state="failed", reason=reason, **about)
        case ResultError():
            return ToolAnswer(state="replayed", is_kept=False, **about)
        case StoreError():
            reason = "the record of calls cannot be reached, so it was not started; try again later"
            return ToolAnswer(state="not_done", reason=reason, retry_after=5.0, **about)
    return ToolAnswer(state="not_done", reason=text_of(error), **about)


def key_in(meta: Any) -> str | None:
    """The key that the caller's program sent in ``_meta``, with its signature if there is one; None: no key."""
    key, signature = _text_in(meta, "key"), _text_in(meta, "key-signature")
    return key if key is None or signature is None else SignedKey(key, signature)


def run_in(meta: Any) -> str | None:
    """The run that the caller's program named in ``_meta``; None: none."""
    return _text_in(meta, "run")


def _text_in(meta: Any, name: str) -> str | None:
    value = meta.get(META + name) if isinstance(meta, Mapping) else None
    if value is None or isinstance(value, str):
        return value
    raise InvalidKeyError(f"{META}{name} in _meta must be text, not {type(value).__name__}")


def _whole(wait: float | None) -> int:
    return max(1, round(wait or 1))
