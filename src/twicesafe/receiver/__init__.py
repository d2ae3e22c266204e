"""The receiver: run a handler, record its result under a key, and answer repeats with that result.

receiver    `Receiver` and `AsyncReceiver`, on a shared `_base`
claim       `with receiver.claim(key)`: a manual claim
message_handler    handlers as classes
maintenance        sweeping on a timer; one node per interval runs it
"""

from ._claim import AsyncClaim, Claim
from ._maintenance import AsyncMaintenance, Maintenance
from ._message_handler import AsyncMessageHandler, MessageHandler
from ._receiver import AsyncReceiver, Receiver

__all__ = [
    "AsyncClaim",
    "AsyncMaintenance",
    "AsyncMessageHandler",
    "AsyncReceiver",
    "Claim",
    "Maintenance",
    "MessageHandler",
    "Receiver",
]
