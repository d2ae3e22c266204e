"""twicesafe as a contestant: through its public names only, with default settings."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from twicesafe import AsyncReceiver, Receiver

from .workload import Contestant

NAME = "twicesafe"


def blocking(
    url: str, handler: Callable[[str], Any], *, cache: int = 0, name: str = NAME
) -> Contestant:
    receiver = Receiver.open(url, cache=cache)

    def call(key: str) -> Any:
        return receiver.process(key, handler, key)

    return Contestant(name, call, receiver.close)


def awaited(
    url: str, handler: Callable[[str], Any], *, cache: int = 0, name: str = NAME
) -> Contestant:
    receiver = AsyncReceiver.open(url, cache=cache)

    async def call(key: str) -> Any:
        return await receiver.process(key, handler, key)

    return Contestant(name, call, receiver.close)


def two_receivers(url: str, handler: Callable[[str], Any]) -> Contestant:
    """Callers take turns at two receivers: half of them can only be woken through the store."""
    both = [blocking(url, handler), blocking(url, handler)]
    turn = itertools.cycle(both)

    def call(key: str) -> Any:
        return next(turn).call(key)

    def close() -> None:
        for each in both:
            each.close()

    return Contestant(NAME, call, close)


def two_receivers_async(url: str, handler: Callable[[str], Any]) -> Contestant:
    both = [awaited(url, handler), awaited(url, handler)]
    turn = itertools.cycle(both)

    async def call(key: str) -> Any:
        return await next(turn).call(key)

    async def close() -> None:
        for each in both:
            await each.close()

    return Contestant(NAME, call, close)


def batches(url: str, handler: Callable[[str], Any]) -> Contestant:
    receiver = Receiver.open(url)

    def many(keys: Sequence[str]) -> None:
        outcomes = receiver.process_many(keys, handler, key=_itself)
        assert all(outcome.ok for outcome in outcomes)

    return Contestant(NAME, close=receiver.close, many=many)


def batches_async(url: str, handler: Callable[[str], Any]) -> Contestant:
    receiver = AsyncReceiver.open(url)

    async def many(keys: Sequence[str]) -> None:
        outcomes = await receiver.process_many(keys, handler, key=_itself, concurrency=10)
        assert all(outcome.ok for outcome in outcomes)

    return Contestant(NAME, close=receiver.close, many=many)


def _itself(key: str) -> str:
    return key
