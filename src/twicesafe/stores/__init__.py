"""Stores: where records live. One file per engine; `open_store` finds the one for a URL."""

from ._base import AsyncStore, Capabilities, Finding, Store
from ._urls import open_async_store, open_store

__all__ = ["AsyncStore", "Capabilities", "Finding", "Store", "open_async_store", "open_store"]
