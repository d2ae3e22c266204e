"""twicesafe: the idempotent receiver. A repeat gets the first answer instead of a second effect."""

from ._version import __version__
from .claims import AsyncClaim, Claim
from .context import ActiveClaim, current_claim, current_key, key_scope
from .errors import *  # noqa: F403 - the error tree is public as a whole
from .errors import __all__ as _errors
from .handlers import AsyncMessageHandler, MessageHandler
from .inbox import AsyncInbox, Inbox
from .keys import Key
from .outbox import AsyncOutbox, Outbox
from .outcomes import Failure, Outcome
from .policy import Backoff, Policy
from .receiver import AsyncReceiver, Receiver
from .records import Cause, Record, State
from .relay import AsyncOutboxRelay, OutboxRelay

__all__ = [  # noqa: PLE0604 - the errors' names are data
    "ActiveClaim",
    "AsyncClaim",
    "AsyncInbox",
    "AsyncMessageHandler",
    "AsyncOutbox",
    "AsyncOutboxRelay",
    "AsyncReceiver",
    "Backoff",
    "Cause",
    "Claim",
    "Failure",
    "Inbox",
    "Key",
    "MessageHandler",
    "Outbox",
    "OutboxRelay",
    "Outcome",
    "Policy",
    "Receiver",
    "Record",
    "State",
    "__version__",
    "current_claim",
    "current_key",
    "key_scope",
    *_errors,
]
