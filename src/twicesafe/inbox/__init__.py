"""The inbox: your effect and its record commit together, in your own transaction.

_inbox              `Inbox` and `AsyncInbox`; what they share is in `_base`
_consumer_delivery  a consumer's message: one transaction, begun and committed here
"""

from ._inbox import AsyncInbox, Inbox

__all__ = ["AsyncInbox", "Inbox"]
