"""Stores: where records are kept. Import from here to write your own store.

    Store, AsyncStore     subclass these; `ThreadedStore` makes an async store out of a blocking one
    Capabilities          what the store can do; a missing capability is a visible skip in the tests
    ClaimRequest, …       the requests that a store performs, and the answers
    lifecycle             the rules: (row, request, time) → (answer, row to write)
    matches               whether a record meets the conditions of a search
    Row, …                what a store keeps and reports
    OutboxPort, …         the outbox of a store that has one, and the requests that it performs
    memory                the smallest of our stores, to read first

docs/how-to/write-a-store.md goes through it step by step; `twicesafe.testing.StoreConformance` tests it.

Where these names come from, and what our own stores share:

    _base             `Store`, `AsyncStore`, `Capabilities`; `_outbox_port`: the outbox of a store
    _urls             a URL becomes a store; `_certificates`: the files that a URL names
    _batching         concurrent calls of an event loop share one batch
    _group_commit     threads that write through one connection share one transaction
    _threaded_store   a blocking store for event loops
    _memory_runs      durable runs of `memory`
"""

import typing as _typing

from .._core.outbox.requests import (
    Added,
    Awake,
    Backlog,
    Depth,
    Fetch,
    Fetched,
    Heartbeat,
    LeasedSlots,
    ListRelays,
    Message,
    OutboxRequest,
    ParkedLane,
    ParkedLanes,
    Pending,
    Prepare,
    Relays,
    RelayStatus,
    Setback,
    Settle,
    Unpark,
)
from .._core.protocol import (
    Abandon,
    Ack,
    Adopt,
    AuditLog,
    Browse,
    Claimed,
    ClaimRequest,
    Complete,
    Count,
    Discard,
    Fail,
    Filter,
    Forget,
    History,
    Page,
    RaiseFences,
    Read,
    Release,
    Renew,
    Request,
    Resolve,
    Rewrite,
    Survey,
    Sweep,
    Verdict,
)
from .._values.clocks import wall_clock
from .._values.records import AuditEntry, Row, State, Stats, SweepReport, moment
from ._base import AsyncStore, Capabilities, Finding, Store
from ._outbox_port import AsyncOutboxPort, OutboxInTransaction, OutboxPort
from ._urls import open_async_store, open_store

if _typing.TYPE_CHECKING:
    from .._core import lifecycle
    from .._core.record_filter import matches
    from ._threaded_store import ThreadedStore

__all__ = [
    "Abandon",
    "Ack",
    "Added",
    "Adopt",
    "AsyncOutboxPort",
    "AsyncStore",
    "AuditEntry",
    "AuditLog",
    "Awake",
    "Backlog",
    "Browse",
    "Capabilities",
    "ClaimRequest",
    "Claimed",
    "Complete",
    "Count",
    "Depth",
    "Discard",
    "Fail",
    "Fetch",
    "Fetched",
    "Filter",
    "Finding",
    "Forget",
    "Heartbeat",
    "History",
    "LeasedSlots",
    "ListRelays",
    "Message",
    "OutboxInTransaction",
    "OutboxPort",
    "OutboxRequest",
    "Page",
    "ParkedLane",
    "ParkedLanes",
    "Pending",
    "Prepare",
    "RaiseFences",
    "Read",
    "RelayStatus",
    "Relays",
    "Release",
    "Renew",
    "Request",
    "Resolve",
    "Rewrite",
    "Row",
    "Setback",
    "Settle",
    "State",
    "Stats",
    "Store",
    "Survey",
    "Sweep",
    "SweepReport",
    "ThreadedStore",
    "Unpark",
    "Verdict",
    "lifecycle",
    "matches",
    "moment",
    "open_async_store",
    "open_store",
    "wall_clock",
]


if not _typing.TYPE_CHECKING:  # a type checker must not believe that every name exists

    def __getattr__(name: str) -> _typing.Any:
        """Load a name on first use: a program that opens a store by URL needs none of them."""
        if name == "ThreadedStore":
            from ._threaded_store import ThreadedStore

            return ThreadedStore
        if name == "matches":
            from .._core.record_filter import matches

            return matches
        if name == "lifecycle":
            from .._core import lifecycle

            return lifecycle
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
