"""Sent: what happened to a call, attached to its response or its error.

response = client.post("/charges", json=order)
sent_of(response).replayed      # the server had already done it
except httpx.TransportError as error:
    sent_of(error).key          # to repeat the call, send it again under this key
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from .._values.keys import Key

__all__ = ["EXTENSION", "End", "Sent", "mark", "sent_of"]

EXTENSION = "twicesafe"
"""The name of an httpx response's extension, and of the attribute elsewhere."""

End: TypeAlias = Literal["answered", "error", "attempts", "deadline", "budget", "body"]


class Sent(msgspec.Struct, frozen=True):
    """One call: its key, how often it was sent, and why it was not sent again."""

    key: str
    """The call's key. To repeat the call, send it again under this key."""
    attempts: int
    """How often it was sent."""
    replayed: bool
    """The answer is a replay from the server's record: the last attempt had no effect."""
    end: End
    """answered: the answer is final. error: the error is final (a certificate, a local protocol error,
    aiohttp's total time-out).
    Otherwise the limit that prevented a retry: attempts, deadline, budget, or body (which could be read
    only once)."""

    def __repr__(self) -> str:
        replayed = ", replayed" if self.replayed else ""
        return f"<Sent {Key(self.key).short} {self.attempts}x, {self.end}{replayed}>"


def mark(what: Any, sent: Sent) -> None:
    """Attach it to a response or an error."""
    setattr(what, EXTENSION, sent)
    if isinstance(what, BaseException):
        times = "once" if sent.attempts == 1 else f"{sent.attempts} times"
        what.add_note(
            f"twicesafe: sent {times}, then stopped ({sent.end}). The effect may have happened: "
            "retry under the same key, sent_of(error).key"
        )


def sent_of(what: object) -> Sent | None:
    """What happened to the call of this response or error; None: it was sent without a key."""
    extensions = getattr(what, "extensions", None)
    if isinstance(extensions, dict) and EXTENSION in extensions:
        found = extensions[EXTENSION]
    else:
        found = getattr(what, EXTENSION, None)
    return found if isinstance(found, Sent) else None
