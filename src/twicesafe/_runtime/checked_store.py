"""A store whose keys are hidden: the first claim of this process checks the secret (`_core.secret_check`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._core.driving import drive, drive_async
from .._core.protocol import ClaimRequest
from .._core.secret_check import check_secret
from ..errors import StoreUnavailableError

__all__ = ["AsyncCheckedStore", "CheckedStore"]


class _Checked:
    def __init__(self, store: Any) -> None:
        self._store, self._is_known = store, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _must_check(self, requests: Sequence[Any]) -> bool:
        return not self._is_known and any(isinstance(ask, ClaimRequest) for ask in requests)


class CheckedStore(_Checked):
    def perform(self, request: Any) -> Any:
        if self._must_check((request,)):
            self._check()
        return self._store.perform(request)

    def perform_many(self, requests: Sequence[Any]) -> list[Any]:
        if self._must_check(requests):
            try:
                self._check()
            except StoreUnavailableError as error:
                return [error.again() for _ in requests]
        return self._store.perform_many(requests)  # type: ignore[no-any-return]

    def _check(self) -> None:
        drive(check_secret(self._store.hidden_keys), self._store.perform)
        self._is_known = True


class AsyncCheckedStore(_Checked):
    async def perform(self, request: Any) -> Any:
        if self._must_check((request,)):
            await self._check()
        return await self._store.perform(request)

    async def perform_many(self, requests: Sequence[Any]) -> list[Any]:
        if self._must_check(requests):
            try:
                await self._check()
            except StoreUnavailableError as error:
                return [error.again() for _ in requests]
        return await self._store.perform_many(requests)  # type: ignore[no-any-return]

    async def _check(self) -> None:
        await drive_async(check_secret(self._store.hidden_keys), self._store.perform)
        self._is_known = True
