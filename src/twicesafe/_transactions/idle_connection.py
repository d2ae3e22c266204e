"""Transactions that we begin and end on a connection that the user hands over idle.

    begun = begin(connection)             # UsageError: a transaction is open already
    begun.transaction.run(program)
    begun.commit()                        # or rollback(), which never raises

How a driver or a framework begins and ends a transaction is in its adapter (`ends`).
`fresh_connection` is for connections that we also open and close.
"""

from __future__ import annotations

import contextlib
import inspect
from typing import Any

from ..errors import UsageError
from . import async_class_of, class_of
from .base import AsyncTransaction, Ends, Transaction

__all__ = ["AsyncBegun", "Begun", "awaited", "begin", "begin_async"]


class Begun:
    """A transaction that we began on the user's connection."""

    def __init__(self, transaction: Transaction, ends: Ends) -> None:
        self.transaction, self._ends = transaction, ends

    def commit(self) -> None:
        """Raises the driver's own error."""
        self._ends.commit()

    def rollback(self) -> None:
        with contextlib.suppress(Exception):  # the connection is broken, or nothing is open
            self._ends.rollback()


class AsyncBegun:
    """The async version of `Begun`."""

    def __init__(self, transaction: AsyncTransaction, ends: Ends) -> None:
        self.transaction, self._ends = transaction, ends

    async def commit(self) -> None:
        """Raises the driver's own error."""
        await awaited(self._ends.commit())

    async def rollback(self) -> None:
        with contextlib.suppress(Exception):
            await awaited(self._ends.rollback())


def begin(connection: Any) -> Begun:
    """Begin a transaction on an idle connection."""
    cls = class_of(connection)
    ends = cls.ends(connection)
    if not ends.is_idle():
        raise _open()
    try:
        ends.begin()
    except Exception:
        raise
    except BaseException:  # an interrupt: it may have begun
        with contextlib.suppress(Exception):
            ends.rollback()
        raise
    try:
        transaction = cls(connection)
        transaction.check()
    except BaseException:
        with contextlib.suppress(Exception):
            ends.rollback()
        raise
    return Begun(transaction, ends)


async def begin_async(connection: Any) -> AsyncBegun:
    """The async version of `begin`."""
    cls = async_class_of(connection)
    ends = cls.ends(connection)
    if not await awaited(ends.is_idle()):
        raise _open()
    await awaited(ends.begin())
    try:
        transaction = cls(connection)
        await transaction.check()
    except BaseException:
        with contextlib.suppress(Exception):
            await awaited(ends.rollback())
        raise
    return AsyncBegun(transaction, ends)


async def awaited(reply: Any) -> Any:
    """The answer of a function that may be async."""
    return await reply if inspect.isawaitable(reply) else reply


def _open() -> UsageError:
    return UsageError(
        "this connection already has an open transaction; pass an idle connection: the step begins and "
        "commits its own transaction, so that its effect and its record are committed together"
    )
