"""The shipped inbox on the virtual database: both twins, unchanged, down to their statements.

What an engine brings of its own is here: how it inserts first and how it completes. What is rare is
decided by the programs that all engines share (`_engines.sql.in_transaction`), as in PostgreSQL's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from twicesafe import AsyncInbox, Inbox
from twicesafe._core.inbox_requests import Enter, Entered, Leave
from twicesafe._core.protocol import Claimed, Verdict
from twicesafe._engines.sql.in_transaction import InTransaction, look
from twicesafe._runtime.transaction import AsyncTransactionRuntime, TransactionRuntime
from twicesafe._transactions.base import (
    AsyncTransaction,
    Dialect,
    Ends,
    Style,
    Transaction,
    TransactionState,
)
from twicesafe.errors import StillInProgressError
from twicesafe.stores._base import Capabilities, Program

from .fibers import judge
from .policies import CONSUMERS, POLICIES
from .statements import Finish, Floor, Insert, Load, Save

if TYPE_CHECKING:
    from .connection import Connection

__all__ = ["INSIDE", "VirtualTransaction", "inbox_for"]

RACES = 5


class Programs:
    """What `InTransaction` asks of an engine's programs."""

    lock = ""
    moves = None  # no migration is under way

    def load(self, id: bytes, lock: str) -> Program[Any]:  # noqa: A002
        return (yield Load(id))

    def floor(self) -> Program[Any]:
        return (yield Floor())

    def save(self, row: Any, new: bool = False) -> Program[Any]:
        yield Save(row, new)


class VirtualInside(InTransaction):
    """Insert first; what is seen may need no write; else decide under the lock."""

    def __init__(self) -> None:
        self.programs = Programs()  # type: ignore[assignment]

    def enter(self, asks: Sequence[Enter], wait: float) -> Program[list[Entered]]:
        [one] = asks
        return [(yield from self._enter(one, wait))]

    def _enter(self, asked: Enter, wait: float) -> Program[Entered]:
        for _ in range(RACES):
            now, mark, fence, seen = yield Insert(asked, wait)
            if fence is not None:
                answer: Claimed | None = Claimed(Verdict.WON, fence, 1)
            elif seen is None:
                continue  # another transaction was faster: now there is something to see
            else:
                answer = look(seen, asked, now)
            if answer is None:
                answer = yield from self._decide(asked)
            yield asked, answer
            return Entered(answer, mark)
        raise StillInProgressError("overtaken", key=asked.key, retry_after=0.5)

    def leave(self, ask: Leave) -> Program[bool]:
        return (yield Finish(ask))


INSIDE = VirtualInside()


class Store:
    """What an inbox asks of its store, besides deferred writes."""

    capabilities = Capabilities(transactions=True)
    dialect = "postgresql"
    hidden_keys = None

    @staticmethod
    def in_transaction(style: str) -> InTransaction:
        return INSIDE

    def perform(self, request: Any) -> Any:
        """An inbox sends no requests: it runs programs in transactions."""
        raise NotImplementedError


STORE: Any = Store()


def _perform(connection: Connection, statement: Any) -> Any:
    if type(statement) is tuple:  # no statement: what was decided, for the monitor
        world = connection.worker.world
        judge(world, world.monitor.entered, connection.session, *statement)
        return None
    return connection.call(statement)


class VirtualTransaction(Transaction):
    dialect: Dialect = "postgresql"
    style: Style = "%s"

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @staticmethod
    def ends(connection: Any) -> Ends:
        raise NotImplementedError("the caller of an inbox begins and ends its transaction itself")

    def driver(self) -> Connection:
        return self._connection

    def look(self, answered: bool = False) -> TransactionState:
        """No connection of the lab commits by itself."""
        return TransactionState.OPEN

    def execute(self, statement: Any) -> Any:
        return _perform(self._connection, statement)


class AsyncVirtualTransaction(AsyncTransaction):
    dialect: Dialect = "postgresql"
    style: Style = "%s"

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @staticmethod
    def ends(connection: Any) -> Ends:
        raise NotImplementedError("the caller of an inbox begins and ends its transaction itself")

    def driver(self) -> Connection:
        return self._connection

    def look(self, answered: bool = False) -> TransactionState:
        return TransactionState.OPEN

    async def execute(self, statement: Any) -> Any:
        return _perform(self._connection, statement)


class BlockingRuntime(TransactionRuntime):
    """The blocking runtime, with connections of the lab."""

    _transaction = VirtualTransaction


class AsyncRuntime(AsyncTransactionRuntime):
    """The async runtime. Work that has its own thread runs in the same fibre here."""

    _transaction = AsyncVirtualTransaction

    async def in_thread(self, work: Any, *args: Any) -> None:
        work(*args)


@cache
def inbox_for(loop: bool, consumer: int, policy: int) -> Any:
    """Made once: schedules are many. Each process copies it and has its own deferred writes."""
    settings, results = POLICIES[policy]
    kind = AsyncInbox if loop else Inbox
    inbox: Any = kind(STORE, consumer=CONSUMERS[consumer], policy=settings, results=results)
    inbox._runtime = AsyncRuntime(STORE) if loop else BlockingRuntime(STORE)
    inbox._runtime.store = STORE
    inbox._notify = _ignore
    return inbox


def _ignore(event: Any) -> None:
    """The events of simulated work have no observers."""
