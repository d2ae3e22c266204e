"""The inbox: your effect and its record commit together, in your own transaction."""

from ._inbox import AsyncInbox, Inbox

__all__ = ["AsyncInbox", "Inbox"]
