"""The receiver: run a handler, record its result under a key, and answer repeats with that result.

_receiver         `Receiver` and `AsyncReceiver`; what they share is in `_base`
_decorator        `@receiver.idempotent`
_claim            `with receiver.claim(key)`: a manual claim; `_edge_claim` for HTTP and tools
_batches          `process_many`
_message_handler  handlers as classes; `_queue_delivery` gives queues a verdict for each
_durable, _steps  `@receiver.durable`, and the steps; `_durable_arguments` stores the arguments
_step_functions   refuses a step, undo or probe that cannot be called
_completion       runs the durable runs that are due; `_completer` keeps doing it
_maintenance      sweeping on a timer; one node per interval runs it
_operators        release, resolve, forget, sweep …; `_run_operators` for durable runs
_inspection       records, counts, the audit trail; `_health` judges them
_fallback         the store that a circuit breaker uses while the own store is down
_operator_flows   the requests of operators as flows, for the blocking and the async classes
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
