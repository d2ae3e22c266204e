"""The store of one region, as its receivers see it: every claim is checked against the register.

A receiver on this store works like any other. Transactions and durable runs are not offered: the
register cannot be asked inside your transaction, and steps are not copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn, Self

from .._core.protocol import ClaimRequest, Request
from .._core.regions.claiming import HERE, Region, claim, finishing
from .._core.regions.epochs import REGISTER
from ..errors import UsageError
from ..stores._base import AsyncStore, Capabilities, Finding, Store
from ._performing import perform, perform_async

__all__ = ["AsyncRegionStore", "RegionStore"]


def _offered(capabilities: Capabilities) -> Capabilities:
    return replace(capabilities, transactions=False, outbox=False, steps=False)


def _by_url(cls: type) -> NoReturn:
    raise UsageError(f"{cls.__name__} has no URL: use Regions.open(…).receiver(region)")


def _probe(region: Region) -> Callable[[Any], Any] | None:
    return None if isinstance(region.unknown, str) else region.unknown


class RegionStore(Store):
    def __init__(self, store: Store, register: Store, region: Region) -> None:
        self._store, self._region = store, region
        self._stores = {HERE: store, REGISTER: register}
        self.url, self.place = store.url, store.place
        self.capabilities = _offered(store.capabilities)  # type: ignore[misc]

    @classmethod
    def open(cls, url: str) -> Self:
        _by_url(cls)

    def perform(self, request: Request) -> Any:
        if isinstance(request, ClaimRequest):
            flow = claim(self._region, request)
            return perform(flow, self._stores, _probe(self._region))
        return self._store.perform(finishing(self._region, request))

    def perform_many(self, requests: Sequence[Request]) -> list[Any]:
        """Claims one by one: each may be of another home, or in doubt."""
        if not any(isinstance(request, ClaimRequest) for request in requests):
            return self._store.perform_many([finishing(self._region, each) for each in requests])
        answers: list[Any] = []
        for request in requests:
            try:
                answers.append(self.perform(request))
            except Exception as error:
                answers.append(error)
        return answers

    def watch(self, id: bytes, seconds: float) -> None:  # noqa: A002
        self._store.watch(id, seconds)

    def doctor(self) -> list[Finding]:
        return self._store.doctor()

    def close(self) -> None:
        """The stores belong to `Regions`, which closes them."""


class AsyncRegionStore(AsyncStore):
    def __init__(self, store: AsyncStore, register: AsyncStore, region: Region) -> None:
        self._store, self._register, self._region = store, register, region
        self._stores = {HERE: store, REGISTER: register}
        self._beside: RegionStore | None = None
        self.url, self.place = store.url, store.place
        self.capabilities = _offered(store.capabilities)  # type: ignore[misc]

    @classmethod
    def open(cls, url: str) -> Self:
        _by_url(cls)

    async def ready(self) -> None:
        await self._store.ready()

    async def perform(self, request: Request) -> Any:
        if isinstance(request, ClaimRequest):
            flow = claim(self._region, request)
            return await perform_async(flow, self._stores, _probe(self._region))
        return await self._store.perform(finishing(self._region, request))

    async def perform_many(self, requests: Sequence[Request]) -> list[Any]:
        if not any(isinstance(request, ClaimRequest) for request in requests):
            asks = [finishing(self._region, each) for each in requests]
            return await self._store.perform_many(asks)
        answers: list[Any] = []
        for request in requests:
            try:
                answers.append(await self.perform(request))
            except Exception as error:
                answers.append(error)
        return answers

    async def watch(self, id: bytes, seconds: float) -> None:  # noqa: A002
        await self._store.watch(id, seconds)

    async def doctor(self) -> list[Finding]:
        return await self._store.doctor()

    def blocking_store(self) -> Store:
        """For renewals, which need no register."""
        if self._beside is None:
            store = self._store.blocking_store()
            self._beside = RegionStore(store, store, self._region)
        return self._beside

    async def close(self) -> None:
        """The stores belong to `AsyncRegions`, which closes them."""
