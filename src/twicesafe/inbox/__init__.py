"""The inbox: the effect and the record of it, in one transaction of yours."""

from ._inbox import AsyncInbox, Inbox

__all__ = ["AsyncInbox", "Inbox"]
