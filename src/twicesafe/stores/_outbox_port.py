"""The outbox of a store: the interface for relays, operators and `Outbox.add`, with typed replies.

A store with the capability ``outbox`` has one as `Store.outbox` (`AsyncStore.outbox`). Records are
claimed through `Store.perform`; messages are not records, and go through this port.

    port.perform(Backlog())              one request; the type of the request says what it returns
    port.listen(owner, seconds)          with ``wake``: sleep until a message is added
    port.in_transaction("%s").add(…)     statements for the transaction of the caller
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Protocol

from .._core.outbox.requests import Added, OutboxRequest, Reply
from ._base import Program

__all__ = ["AsyncOutboxPort", "OutboxInTransaction", "OutboxPort"]


class OutboxInTransaction(Protocol):
    """Writes messages in a transaction of the caller, on the caller's connection."""

    def add(self, added: Sequence[Added]) -> Program[None]:
        """Write messages, in this order."""


class _Port(abc.ABC):
    @property
    @abc.abstractmethod
    def dialect(self) -> str:
        """The SQL dialect of the engine: the caller's connection must speak the same."""

    @abc.abstractmethod
    def in_transaction(self, style: str) -> OutboxInTransaction:
        """``style``: the placeholder of the caller's driver: ``?``, ``%s`` or ``$1``."""


class OutboxPort(_Port):
    """The outbox of a blocking store. Safe to use from many threads."""

    @abc.abstractmethod
    def perform(self, request: OutboxRequest[Reply]) -> Reply:
        """Do one request atomically. Driver errors become `StoreUnavailableError`."""

    def listen(self, owner: bytes, seconds: float) -> None:
        """Return when this relay's slots may have a new message, or after `seconds`."""
        raise NotImplementedError


class AsyncOutboxPort(_Port):
    """The outbox of an async store: the same methods, awaited."""

    @abc.abstractmethod
    async def perform(self, request: OutboxRequest[Reply]) -> Reply: ...

    async def listen(self, owner: bytes, seconds: float) -> None:
        raise NotImplementedError
