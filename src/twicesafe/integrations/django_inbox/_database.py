"""A Django database as a store: opened when it is first needed, and never left open.

Django imports modules before the tables exist (``check``, ``makemigrations``, the first ``migrate``), and
before the test runner has created the test database. So nothing is opened before the first use, and the
address is looked up each time. An inbox rarely needs its own connection (only to
record a failed attempt), so it opens and closes one each time. A test database can then be dropped,
and the server keeps no idle connection for us.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

from django.db import connections

from ..._core.outbox.requests import OutboxRequest, Prepare, Reply
from ..._values.hidden_keys import HiddenKeys
from ...errors import TwicesafeError
from ...stores._base import Capabilities, Store
from ...stores._outbox_port import OutboxInTransaction, OutboxPort
from ...stores._urls import open_store

__all__ = ["DjangoDatabase", "make_ready"]

_ALL: Final[dict[str, DjangoDatabase]] = {}
"""Databases that have an inbox or an outbox, by alias."""
_READY: Final[set[str]] = set()


class DjangoDatabase:
    """The part of a store that `Inbox` and `Outbox` use."""

    def __init__(
        self, alias: str, url: Callable[[], str], hidden_keys: HiddenKeys | None = None
    ) -> None:
        self._alias, self._url, self.hidden_keys = alias, url, hidden_keys
        self.outbox = _DjangoOutbox(self)
        _ALL[alias] = self

    @property
    def dialect(self) -> str:
        return str(connections[self._alias].vendor)  # Django names them as we do

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(transactions=True, outbox=True, single_writer=self.dialect == "sqlite")

    @property
    def url(self) -> str:
        return self._url()

    @contextlib.contextmanager
    def opened(self) -> Iterator[Store]:
        store = open_store(self._url())
        try:
            yield store
        finally:
            store.close()

    def in_transaction(self, *style: str) -> Any:
        with self.opened() as store:
            return store.in_transaction(*style)

    def own_transaction(self, program: Callable[[], Any]) -> Any:
        with self.opened() as store:
            return store.own_transaction(program)

    def perform(self, request: Any) -> Any:
        with self.opened() as store:
            return store.perform(request)

    def refresh(self) -> None:
        """Every use opens the store again."""

    def close(self) -> None:
        """Nothing is open."""


class _DjangoOutbox(OutboxPort):
    """The outbox of that database; its statements need no open store."""

    def __init__(self, database: DjangoDatabase) -> None:
        self._database = database
        self._prepared: dict[str, OutboxPort] = {}

    def _known(self) -> OutboxPort:
        """The outbox at the current address, once its tables were found."""
        url = self._database.url
        if url not in self._prepared:
            with self._database.opened() as store:
                store.outbox.perform(Prepare())
                self._prepared[url] = store.outbox
        return self._prepared[url]

    @property
    def dialect(self) -> str:
        return self._known().dialect

    def in_transaction(self, style: str) -> OutboxInTransaction:
        return self._known().in_transaction(style)

    def perform(self, request: OutboxRequest[Reply]) -> Reply:
        if isinstance(request, Prepare):
            return []  # type: ignore[return-value]  # with the first use
        with self._database.opened() as store:
            return store.outbox.perform(request)


def make_ready(alias: str) -> None:
    """SQLite: switch the file to WAL and set up its clock while no transaction blocks that.

    Later, an open transaction of the caller that has written would keep our connection out.
    """
    database = _ALL.get(alias)
    if database is None or not database.capabilities.single_writer:
        return
    with contextlib.suppress(
        TwicesafeError
    ):  # no tables yet, or in memory: the first use will tell
        if database.url not in _READY:
            open_store(database.url).close()
            _READY.add(database.url)
