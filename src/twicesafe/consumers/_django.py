"""Django's database connections, in handlers of consumers: those that have died are closed before each message.

Django keeps a connection for each thread, and uses it even if the database has closed it. For each
request, Django closes such connections itself (`close_old_connections`). A consumer has no
requests. Without this, one restart of the database would make all later messages of a thread fail,
and become dead letters. In transaction mode the message's transaction may be on Django's own
connection, so this happens before the transaction begins: inside it, Django would close that
connection (`connecting`).

Nothing happens in a process that does not use Django.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

__all__ = [
    "close_old_connections_async",
    "close_old_connections_if_used",
    "connecting",
    "uses_django",
]


def uses_django() -> bool:
    """Django may be imported without being used: then it has no settings."""
    return "django.db" in sys.modules and sys.modules["django.conf"].settings.configured


def close_old_connections_if_used() -> None:
    """In the thread of the handler, before it starts."""
    if uses_django():
        sys.modules["django.db"].close_old_connections()


def connecting(connect: Callable[[], Any]) -> Callable[[], Any]:
    """This ``connect=``, after Django has closed its old connections of the thread."""

    def connect_anew() -> Any:
        close_old_connections_if_used()
        return connect()

    return connect_anew


async def close_old_connections_async() -> None:
    """The same in the thread in which Django runs the queries of async handlers."""
    close = sys.modules["django.db"].close_old_connections
    await importlib.import_module("asgiref.sync").sync_to_async(close)()
