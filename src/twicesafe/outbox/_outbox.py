"""The outbox: messages that are published if, and only if, your transaction commits.

    outbox = Outbox.open("postgresql://…/shop")
    with pool.connection() as connection, connection.transaction():
        insert_order(connection, order)
        outbox.add(connection, topic="orders", body={"id": order.id}, key=order.customer)

A row is written in your open transaction, on your own connection or session. A relay
(`OutboxRelay`, or ``twicesafe relay``) publishes it afterwards: at least once, always under the
same id, in row order per key, without skipping a row. Consumers that deduplicate by the id apply it
once.

You may choose the id. Otherwise, inside a protected call it is derived from the current key and the
number of the message, so that a re-run sends the same ids. Elsewhere it is a UUIDv7.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NoReturn, Self

from .. import _transactions as transactions
from .._core.encrypting import encrypted_body
from .._core.operations import check_limit
from .._core.outbox.requests import (
    Added,
    Backlog,
    Depth,
    ListRelays,
    OutboxRequest,
    ParkedLane,
    ParkedLanes,
    Prepare,
    Relays,
    Reply,
    Unpark,
)
from .._values.cipher import Cipher
from .._values.closed import closed
from .._values.settings import check_methods, expect, is_whole
from ..errors import UsageError, stays_here
from ..stores._base import AsyncStore, Store
from ..stores._outbox_port import AsyncOutboxPort, OutboxInTransaction, OutboxPort
from ..stores._urls import check_store, open_async_store, open_store
from ._message import MAX_BYTES, checked

__all__ = ["AsyncOutbox", "Outbox"]


class _Outbox:
    """What both outboxes share, without I/O: check a message, choose the statements."""

    def __reduce__(self) -> NoReturn:
        raise stays_here(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.store.url}>"

    store: Any
    _port: Any
    _blocks = 0

    def __init__(
        self, store: Any, ordered: bool, max_bytes: int, encryption: Cipher | None
    ) -> None:
        check_store(self, store)
        expect(is_whole(max_bytes), "max_bytes", max_bytes, "use 1 or more")
        check_methods(encryption, "encryption", ("encrypt", "decrypt"))
        self._ordered = ordered
        self._max_bytes = max_bytes
        self._cipher = encryption
        self._by_dialect: dict[tuple[str, str], OutboxInTransaction] = {}
        self._opened = store, store.outbox
        self.store, self._port = self._opened

    def _checked(self, fields: Mapping[str, Any]) -> Added:
        """The message as it is written."""
        added = checked(fields, self._ordered, self._max_bytes)
        return added if self._cipher is None else encrypted_body(self._cipher, added)

    def _enter(self) -> None:
        """A `with` block begins. One that follows another opens the store again."""
        self._blocks += 1
        self.store, self._port = self._opened

    def _shut(self) -> Any:
        """Return the store, to be closed; refuse further calls unless in a `with` block."""
        if self._blocks <= 0:
            self.store = self._port = closed(self._opened[0], "outbox")
            self._by_dialect = {}
        return self._opened[0]

    def _statements(
        self, outbox: OutboxPort | AsyncOutboxPort, transaction: Any
    ) -> OutboxInTransaction:
        """The outbox's statements in the placeholder style of the caller's driver."""
        known = self._by_dialect.get((transaction.dialect, transaction.style))
        if known is None:
            if transaction.dialect != outbox.dialect:
                raise UsageError(
                    f"this outbox is on {outbox.dialect}, but the connection is "
                    f"{transaction.dialect}: open the outbox on the database of your connection"
                )
            known = outbox.in_transaction(transaction.style)
            self._by_dialect[transaction.dialect, transaction.style] = known
        return known


class Outbox(_Outbox):
    """The blocking outbox. Thread-safe; one per process and database is enough."""

    store: Store
    _port: OutboxPort

    def __init__(
        self,
        store: Store,
        *,
        ordered: bool = True,
        max_bytes: int = MAX_BYTES,
        encryption: Cipher | None = None,
    ) -> None:
        super().__init__(store, ordered, max_bytes, encryption)
        self._port.perform(Prepare())

    @classmethod
    def open(
        cls,
        url: str,
        *,
        ordered: bool = True,
        max_bytes: int = MAX_BYTES,
        encryption: Cipher | None = None,
    ) -> Self:
        """Open the outbox in the database at this URL; its tables are created if missing.

        ``ordered``: adding a message with a key waits until earlier transactions that added one
        with the same key have ended, so the messages of a key are in commit order. Without it
        `add` never waits, and two concurrent transactions may come in either order.
        ``encryption``: encrypts bodies in the database; the relay needs the same key ring.
        """
        store = open_store(url)
        try:
            return cls(store, ordered=ordered, max_bytes=max_bytes, encryption=encryption)
        except BaseException:
            store.close()
            raise

    def add(
        self,
        connection: Any,
        *,
        topic: str,
        body: object,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        id: str | None = None,  # noqa: A002
    ) -> str:
        """Add one message in the transaction that is open on this connection. Returns its id.

        ``body``: bytes and text are sent as they are, anything else as JSON.
        """
        fields = {"topic": topic, "body": body, "key": key, "headers": headers, "id": id}
        added = self._checked(fields)
        self._write(connection, [added])
        return added.message.id

    def add_many(self, connection: Any, messages: Iterable[Mapping[str, Any]]) -> list[str]:
        """Add many messages in this order, in one batch; each is a mapping of the arguments of
        `add`. Returns the ids.
        """
        added = [self._checked(fields) for fields in messages]
        self._write(connection, added)
        return [one.message.id for one in added]

    def _write(self, connection: Any, added: list[Added]) -> None:
        transaction = transactions.of(connection)
        transaction.check()
        if added:
            statements = self._statements(self._port, transaction)
            transaction.run(statements.add(added))

    def depth(self) -> Depth:
        """Return the number of pending messages, the age of the oldest, and what is parked."""
        return self._port.perform(Backlog())

    def relays(self) -> Relays:
        """Return the relays of the last day, how far behind each is, and which messages no relay publishes."""
        return self._port.perform(ListRelays())

    def parked(self, limit: int = 100) -> list[ParkedLane]:
        """Return the lanes whose first message was refused too often, the longest parked first."""
        check_limit(limit)
        return self._port.perform(ParkedLanes(limit))

    def retry(self, lane: str, *, by: str, why: str = "") -> None:
        """Retry a parked lane, starting with the message that was refused."""
        _require(self._port.perform(_unpark(lane, False, by, why)), lane)

    def skip(self, lane: str, *, by: str, why: str = "") -> None:
        """Continue a parked lane after the refused message, which is kept but not published."""
        _require(self._port.perform(_unpark(lane, True, by, why)), lane)

    def close(self) -> None:
        """Close the outbox's store; your own connections stay open. Further calls are refused."""
        store = self._shut()
        store.close()

    def __enter__(self) -> Self:
        self._enter()
        return self

    def __exit__(self, *_: object) -> None:
        self._blocks -= 1
        self.close()


class AsyncOutbox(_Outbox):
    """Async version of `Outbox`. Its tables are created on entering it or on first use."""

    store: AsyncStore
    _port: AsyncOutboxPort

    def __init__(
        self,
        store: AsyncStore,
        *,
        ordered: bool = True,
        max_bytes: int = MAX_BYTES,
        encryption: Cipher | None = None,
    ) -> None:
        super().__init__(store, ordered, max_bytes, encryption)
        self._prepared = False

    @classmethod
    def open(
        cls,
        url: str,
        *,
        ordered: bool = True,
        max_bytes: int = MAX_BYTES,
        encryption: Cipher | None = None,
    ) -> Self:
        """Open the outbox in the database at this URL; its tables are created if missing.

        ``ordered``: adding a message with a key waits until earlier transactions that added one
        with the same key have ended, so the messages of a key are in commit order. Without it
        `add` never waits, and two concurrent transactions may come in either order.
        ``encryption``: encrypts bodies in the database; the relay needs the same key ring.
        """
        return cls(
            open_async_store(url), ordered=ordered, max_bytes=max_bytes, encryption=encryption
        )

    async def add(
        self,
        connection: Any,
        *,
        topic: str,
        body: object,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        id: str | None = None,  # noqa: A002
    ) -> str:
        """Add one message in the transaction that is open on this connection. Returns its id.

        ``body``: bytes and text are sent as they are, anything else as JSON.
        """
        fields = {"topic": topic, "body": body, "key": key, "headers": headers, "id": id}
        added = self._checked(fields)
        await self._write(connection, [added])
        return added.message.id

    async def add_many(self, connection: Any, messages: Iterable[Mapping[str, Any]]) -> list[str]:
        """Add many messages in this order, in one batch; each is a mapping of the arguments of
        `add`. Returns the ids.
        """
        added = [self._checked(fields) for fields in messages]
        await self._write(connection, added)
        return [one.message.id for one in added]

    async def _write(self, connection: Any, added: list[Added]) -> None:
        transaction = transactions.async_of(connection)
        await transaction.check()
        if added:
            await self._prepare()
            statements = self._statements(self._port, transaction)
            await transaction.run(statements.add(added))

    async def depth(self) -> Depth:
        """Return the number of pending messages, the age of the oldest, and what is parked."""
        return await self._ask(Backlog())

    async def relays(self) -> Relays:
        """Return the relays of the last day, how far behind each is, and which messages no relay publishes."""
        return await self._ask(ListRelays())

    async def parked(self, limit: int = 100) -> list[ParkedLane]:
        """Return the lanes whose first message was refused too often, the longest parked first."""
        check_limit(limit)
        return await self._ask(ParkedLanes(limit))

    async def retry(self, lane: str, *, by: str, why: str = "") -> None:
        """Retry a parked lane, starting with the message that was refused."""
        _require(await self._ask(_unpark(lane, False, by, why)), lane)

    async def skip(self, lane: str, *, by: str, why: str = "") -> None:
        """Continue a parked lane after the refused message, which is kept but not published."""
        _require(await self._ask(_unpark(lane, True, by, why)), lane)

    async def close(self) -> None:
        """Close the outbox's store; your own connections stay open. Further calls are refused."""
        store = self._shut()
        await store.close()

    async def __aenter__(self) -> Self:
        self._enter()
        await self._prepare()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._blocks -= 1
        await self.close()

    async def _prepare(self) -> None:
        from .._runtime.event_loop import running_loop

        running_loop()
        if not self._prepared:
            await self._port.perform(Prepare())
            self._prepared = True

    async def _ask(self, request: OutboxRequest[Reply]) -> Reply:
        await self._prepare()
        return await self._port.perform(request)


# --- what operators give -------------------------------------------------------------------------


def _unpark(lane: str, skip: bool, by: str, why: str) -> Unpark:
    if not _reason(by, "by").strip():
        raise UsageError(
            "by= is required: the name of the operator, which is written to the audit trail"
        )
    try:
        return Unpark(bytes.fromhex(lane), skip, by, _reason(why, "why"))
    except (TypeError, ValueError):
        raise UsageError("a lane is named by its 32 hex digits, as `parked` shows them") from None


def _reason(given: object, what: str) -> str:
    if not isinstance(given, str) or "\0" in given or len(given) > 255:
        raise UsageError(f"{what}= must be text of at most 255 characters")
    try:
        given.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{what}= must be text (valid Unicode)") from None
    return given


def _require(done: bool, lane: str) -> None:
    if not done:
        raise UsageError(f"the lane {lane[:32]} is not parked: there is nothing to retry or skip")
