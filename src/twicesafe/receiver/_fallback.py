"""The fallback store of a circuit breaker. One that is named by a URL connects when it is first needed.

A fallback that is down must not stop a service whose own store works. Wrong settings in its URL are
still refused when the receiver is opened.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from .._core.protocol import Request
from .._forking import RenewedLock
from .._values.breaker import Breaker
from ..errors import ConfigurationError, StoreUnavailableError, TwicesafeError
from ..stores._base import Store
from ..stores._urls import (
    SERVERS,
    check_store,
    is_embedded,
    mask,
    open_async_store,
    open_store,
    place_of,
)

__all__ = ["async_fallback_of", "fallback_of"]

_log = logging.getLogger("twicesafe")


def fallback_of(receiver: Any, breaker: Breaker) -> Any:
    """The breaker's fallback for a blocking receiver; None: it has none."""
    given = _checked(receiver, breaker)
    return _LateStore(given) if isinstance(given, str) else given


def async_fallback_of(receiver: Any, breaker: Breaker) -> Any:
    """The same for an async receiver. Every async store connects on first use."""
    given = _checked(receiver, breaker)
    return open_async_store(given) if isinstance(given, str) else given


def _checked(receiver: Any, breaker: Breaker) -> Any:
    if not isinstance(breaker, Breaker):
        raise ConfigurationError(f"breaker must be a Breaker(…), not {type(breaker).__name__}")
    given = breaker.fallback
    if given is None:
        return None
    if given is receiver.store or _is_on_same_server(given, receiver.store):
        raise ConfigurationError(
            f"the fallback of the breaker is the store itself ({receiver.store.url}): it fails when the "
            "store fails; name another store, or leave fallback out"
        )
    if not isinstance(given, str):
        check_store(receiver, given)
    return given


def _is_on_same_server(given: Any, store: Any) -> bool:
    """Two stores in memory have the same URL, but are different stores."""
    if "memory:" in store.url:
        return False
    if isinstance(given, str):
        return mask(given) == store.url and place_of(given, SERVERS) == _server(store)
    return getattr(given, "url", "") == store.url and _server(given) == _server(store)


def _server(store: Any) -> str:
    return place_of(f"?{getattr(store, 'place', '')}", SERVERS)


class _LateStore:
    """What the circuit breaker needs of a blocking store, which is opened by the first request."""

    def __init__(self, url: str) -> None:
        open_async_store(url)  # refuses wrong settings, and does not connect
        self.url = mask(url)
        self._url = url
        self._opened: Store | None = None
        self._opening = RenewedLock()
        self._attempts = 0
        self._failed: StoreUnavailableError | None = None
        if is_embedded(url):  # there is no server to wait for: a wrong path is known at the start
            with suppress(StoreUnavailableError):
                self._store()

    def perform(self, request: Request) -> Any:
        return self._store().perform(request)

    def perform_many(self, requests: Sequence[Request]) -> list[Any]:
        try:
            store = self._store()
        except StoreUnavailableError as error:
            return [error.again() for _ in requests]
        return store.perform_many(requests)

    def close(self) -> None:
        """The next request opens the store again, as with any other store."""
        with self._opening.now:
            if self._opened is not None:
                self._opened.close()

    def _store(self) -> Store:
        if self._opened is not None:
            return self._opened
        seen = self._attempts
        with self._opening.now:
            if self._opened is None:
                if self._failed is not None and self._attempts > seen:
                    raise self._failed.again()  # another thread tried while this one waited
                self._opened = self._open()
            return self._opened

    def _open(self) -> Store:
        try:
            return open_store(self._url)
        except TwicesafeError as error:
            first = self._failed is None
            self._failed = StoreUnavailableError(f"the fallback store cannot be opened: {error}")
            self._attempts += 1
            if first:
                _log.warning(
                    "the fallback store %s of the circuit breaker cannot be opened, so claims are not "
                    "sent there while the store is down: %s",
                    self.url,
                    error,
                )
            raise self._failed.again() from error
