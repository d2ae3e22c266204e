"""Performs what the flows of regions ask for: requests to the stores of regions, probes and waits."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from .._core.driving import drive, drive_async
from .._core.regions.claiming import Probe
from .._core.regions.epochs import On, RegionFlow
from .._core.regions.failover import Wait
from ..errors import UsageError

__all__ = ["perform", "perform_async"]

T = TypeVar("T")


def perform(
    flow: RegionFlow[T], stores: Mapping[str, Any], probe: Callable[[Any], Any] | None = None
) -> T:
    def act(command: Any) -> Any:
        if type(command) is On:
            store = stores[command.place]
            if type(command.request) is list:
                return store.perform_many(command.request)
            return store.perform(command.request)
        if type(command) is Wait:
            return time.sleep(command.seconds)
        assert type(command) is Probe
        assert probe is not None
        try:
            found = probe(command.key)
        except Exception:
            return None  # not known: it is held
        if inspect.isawaitable(found):
            getattr(found, "close", lambda: None)()
            raise UsageError("unknown= is an async function: use AsyncRegions", key=command.key)
        return found

    return drive(flow, act)


async def perform_async(
    flow: RegionFlow[T], stores: Mapping[str, Any], probe: Callable[[Any], Any] | None = None
) -> T:
    async def act(command: Any) -> Any:
        if type(command) is On:
            store = stores[command.place]
            if type(command.request) is list:
                return await store.perform_many(command.request)
            return await store.perform(command.request)
        if type(command) is Wait:
            return await asyncio.sleep(command.seconds)
        assert type(command) is Probe
        assert probe is not None
        try:
            found = probe(command.key)
            return await found if inspect.isawaitable(found) else found
        except Exception:
            return None  # not known: it is held

    return await drive_async(flow, act)
