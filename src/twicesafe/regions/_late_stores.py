"""The stores of regions, one of which may be lost: a store that does not answer is opened when it is needed.

A process that fails over, and every worker that starts meanwhile, opens the stores while one region is down.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from typing import TypeVar

from .._forking import RenewedLock
from ..errors import ConfigurationError, StoreUnavailableError, UnsupportedByStoreError
from ..stores._base import AsyncStore, Store
from ..stores._urls import open_store

__all__ = ["LateStores", "opened", "usable"]

S = TypeVar("S", bound=Store | AsyncStore)


class LateStores(Mapping[str, Store]):
    """By the names of their regions."""

    def __init__(self, urls: Mapping[str, str]) -> None:
        self._urls = dict(urls)
        self._found: dict[str, Store] = {}
        self._lock = RenewedLock()
        self._opened = ExitStack()

    def open(self) -> None:
        """Open those that answer. Wrong settings are errors at once."""
        for region in self._urls:
            with suppress(StoreUnavailableError):
                self[region]

    def close(self) -> None:
        self._opened.close()

    def __getitem__(self, region: str) -> Store:
        """Raises `StoreUnavailableError` if it still does not answer."""
        found = self._found.get(region)
        if found is None:
            with self._lock.now:
                found = self._found.get(region)
                if found is None:
                    found = usable(region, opened(self._opened, self._urls[region]))
                    self._found[region] = found
        return found

    def __contains__(self, region: object) -> bool:
        return region in self._urls

    def __iter__(self) -> Iterator[str]:
        return iter(self._urls)

    def __len__(self) -> int:
        return len(self._urls)


def opened(stack: ExitStack, url: str) -> Store:
    """If a later one cannot be opened, or a setting is wrong, the stack closes it."""
    store = open_store(url)
    stack.callback(store.close)
    return store


def usable(region: str, store: S) -> S:
    """The store, if it can be that of a region."""
    if store.hidden_keys is not None:
        raise ConfigurationError(
            f"the keys of region {region!r} are hidden, and the home of a key is found by its text: "
            "leave hidden_keys out of the URL"
        )
    if not store.capabilities.copies:
        raise UnsupportedByStoreError(
            f"the store of region {region!r} takes no copies of records: use any store but etcd"
        )
    return store
