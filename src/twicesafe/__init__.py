"""twicesafe: the idempotent receiver. A duplicate gets the first answer, not a second effect."""

import typing as _typing
from importlib import import_module as _import_module

from ._values.breaker import Breaker
from ._values.context import ActiveClaim, current_claim, current_key, key_scope
from ._values.keys import Key
from ._values.outcomes import Failure, Outcome
from ._values.policy import Backoff, Policy
from ._values.records import Cause, Record, State
from ._version import __version__
from .errors import *  # noqa: F403 - the error tree is public as a whole
from .errors import __all__ as _errors
from .receiver import (
    AsyncClaim,
    AsyncMessageHandler,
    AsyncReceiver,
    Claim,
    MessageHandler,
    Receiver,
)

if _typing.TYPE_CHECKING:
    from .inbox import AsyncInbox, Inbox
    from .outbox import AsyncOutbox, AsyncOutboxRelay, Outbox, OutboxRelay
    from .receiver._steps import AsyncSteps, Steps

__all__ = [  # noqa: PLE0604 - the errors' names are data
    "ActiveClaim",
    "AsyncClaim",
    "AsyncInbox",
    "AsyncMessageHandler",
    "AsyncOutbox",
    "AsyncOutboxRelay",
    "AsyncReceiver",
    "AsyncSteps",
    "Backoff",
    "Breaker",
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
    "Steps",
    "__version__",
    "current_claim",
    "current_key",
    "key_scope",
    *_errors,
]

# Imported on first use: these modules take a third of the package's import time.
_LATER = {
    "AsyncInbox": "inbox",
    "AsyncOutbox": "outbox",
    "AsyncOutboxRelay": "outbox",
    "AsyncSteps": "receiver._steps",
    "Inbox": "inbox",
    "Outbox": "outbox",
    "OutboxRelay": "outbox",
    "Steps": "receiver._steps",
}


if not _typing.TYPE_CHECKING:  # a type checker must not believe that every name exists

    def __getattr__(name: str) -> _typing.Any:
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(_import_module(f".{_LATER[name]}", __name__), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
