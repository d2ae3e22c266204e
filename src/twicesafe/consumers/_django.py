"""Django's database connections, in handlers of consumers: those that have died are closed before each message.

Django keeps a connection for each thread, and uses it even if the database has closed it. For each request, Django
closes such connections itself (`close_old_connections`). A consumer has no requests. Without this, one restart of
the database would make all later messages of a thread fail, and become dead letters.

Nothing happens in a process that does not use Django.
"""

from __future__ import annotations

import importlib
import sys

__all__ = ["close_old_connections", "close_old_connections_async", "uses_django"]


def uses_django() -> bool:
    """Django may be imported without being used: then it has no settings."""
    return "django.db" in sys.modules and sys.modules["django.conf"].settings.configured


def close_old_connections() -> None:
    """In the thread of the handler, before it starts."""
    sys.modules["django.db"].close_old_connections()


async def close_old_connections_async() -> None:
    """The same in the thread in which Django runs the queries of async handlers."""
    await importlib.import_module("asgiref.sync").sync_to_async(close_old_connections)()
