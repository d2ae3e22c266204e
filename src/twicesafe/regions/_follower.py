"""A follower: copies the records of one store to another, pass after pass.

with Follower.open("postgresql://eu/shop", "postgresql://us/shop", name="eu") as follower:
    follower.run(every=1.0)             # until follower.stop()
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Self

from .._core.regions.epochs import SOURCE, TARGET, RegionFlow
from .._core.regions.following import Copied, follow
from .._values.clocks import wall_clock
from .._values.keys import Key
from .._values.records import Row
from .._values.settings import Duration, expect, seconds
from ..errors import ConfigurationError, StoreUnavailableError, UnsupportedByStoreError
from ..stores._base import AsyncStore, Store
from ..stores._urls import mask, name_of, open_async_store
from ._base import lag_of
from ._late_stores import opened
from ._performing import perform, perform_async

__all__ = ["AsyncFollower", "Follower"]

LONGEST_PAUSE = 30.0
"""Seconds between two passes while a store does not answer."""


class _Following:
    """What both have in common."""

    def __init__(self, source: Any, target: Any, name: str, overlap: Duration) -> None:
        if not target.capabilities.copies:
            raise UnsupportedByStoreError(
                f"{target.url} takes no copies of records: copy to any store but etcd"
            )
        _expect_two(source is not target, source.url)
        if _secret_of(source) != _secret_of(target):
            raise ConfigurationError(
                f"{source.url} and {target.url} do not have the same hidden_keys: records are copied as they are, so "
                "receivers of the target would not find them, and their work would run again; give both URLs the same "
                "hidden_keys, or none"
            )
        self.name = Key(name).value
        """Under which the target keeps the progress."""
        self._overlap = round(seconds(overlap, "overlap") * 1000)
        expect(self._overlap >= 0, "overlap", overlap, "use 0 or more seconds")
        self._stores = {SOURCE: source, TARGET: target}
        self._may_be_of: Callable[[Row, str], bool] = lambda row, label: True
        """Whether the key of a record may have this home. `Regions` knows; the command does not."""
        self._owned: tuple[Any, ...] = ()

    def __repr__(self) -> str:
        source, target = self._stores.values()
        return f"<{type(self).__name__} {self.name!r}: {source.url} to {target.url}>"

    def _pass(self, tell: Callable[[int], None] | None) -> RegionFlow[Copied]:
        steps = self._stores[SOURCE].capabilities.steps
        return follow(
            self.name,
            wall_clock,
            overlap=self._overlap,
            steps=steps,
            may_be_of=self._may_be_of,
            tell=tell,
        )


class Follower(_Following):
    """Copies records from `source` to `target`. It never replaces a newer record, and may be repeated."""

    def __init__(
        self, source: Store, target: Store, *, name: str, overlap: Duration = 60.0
    ) -> None:
        super().__init__(source, target, name, overlap)
        self._stopped = threading.Event()

    @classmethod
    def open(
        cls, source: str, target: str, *, name: str | None = None, overlap: Duration = 60.0
    ) -> Self:
        """``name``: the name of the source, under which the target keeps the progress; default: its
        URL without secrets, and without options that do not say which store it is.
        """
        _expect_two(source != target, mask(source))
        with ExitStack() as stack:
            stores = opened(stack, source), opened(stack, target)
            follower = cls(*stores, name=name_of(source) if name is None else name, overlap=overlap)
            stack.pop_all()
        follower._owned = stores
        return follower

    def once(self, tell: Callable[[int], None] | None = None) -> Copied:
        """Run one pass: when it ends, the target has everything that the source recorded before it began."""
        return perform(self._pass(tell), self._stores)

    def lag(self) -> float | None:
        """Return the seconds since the last complete pass began; None: there was none. Needs only the target."""
        return perform(lag_of(self.name), self._stores)

    def run(
        self,
        every: Duration = 1.0,
        *,
        tell: Callable[[Copied | StoreUnavailableError], None] | None = None,
    ) -> None:
        """Run pass after pass, until `stop`. While a store does not answer, it retries, with growing pauses."""
        pause = rest = _pause(every)
        while not self._stopped.is_set():
            try:
                found: Copied | StoreUnavailableError = self.once()
                rest = pause
            except StoreUnavailableError as error:
                found, rest = error, min(2 * max(rest, 0.5), LONGEST_PAUSE)
            if tell is not None:
                tell(found)
            if self._stopped.wait(rest):
                return

    def stop(self) -> None:
        """End `run` after the current pass. Call it from any thread."""
        self._stopped.set()

    def close(self) -> None:
        for store in self._owned:
            store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class AsyncFollower(_Following):
    """The async version of `Follower`."""

    def __init__(
        self, source: AsyncStore, target: AsyncStore, *, name: str, overlap: Duration = 60.0
    ) -> None:
        super().__init__(source, target, name, overlap)
        self._stopped = asyncio.Event()

    @classmethod
    def open(
        cls, source: str, target: str, *, name: str | None = None, overlap: Duration = 60.0
    ) -> Self:
        """``name``: the name of the source, under which the target keeps the progress; default: its
        URL without secrets, and without options that do not say which store it is.
        """
        _expect_two(source != target, mask(source))
        stores = open_async_store(source), open_async_store(target)
        follower = cls(*stores, name=name_of(source) if name is None else name, overlap=overlap)
        follower._owned = stores
        return follower

    async def once(self, tell: Callable[[int], None] | None = None) -> Copied:
        """Run one pass: when it ends, the target has everything that the source recorded before it began."""
        return await perform_async(self._pass(tell), self._stores)

    async def lag(self) -> float | None:
        """Return the seconds since the last complete pass began; None: there was none. Needs only the target."""
        return await perform_async(lag_of(self.name), self._stores)

    async def run(
        self,
        every: Duration = 1.0,
        *,
        tell: Callable[[Copied | StoreUnavailableError], None] | None = None,
    ) -> None:
        """Run pass after pass, until `stop`. While a store does not answer, it retries, with growing pauses."""
        pause = rest = _pause(every)
        while not self._stopped.is_set():
            try:
                found: Copied | StoreUnavailableError = await self.once()
                rest = pause
            except StoreUnavailableError as error:
                found, rest = error, min(2 * max(rest, 0.5), LONGEST_PAUSE)
            if tell is not None:
                tell(found)
            try:
                await asyncio.wait_for(self._stopped.wait(), rest)
            except TimeoutError:
                continue

    def stop(self) -> None:
        """End `run` after the current pass. Call it on the event loop."""
        self._stopped.set()

    async def close(self) -> None:
        for store in self._owned:
            await store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


def _secret_of(store: Any) -> bytes | None:
    return None if store.hidden_keys is None else store.hidden_keys.check


def _expect_two(differ: bool, url: str) -> None:
    """A failover would take the progress for that of another store."""
    if not differ:
        raise ConfigurationError(
            f"{url} is both the store to copy from and the one to copy to: give two different ones"
        )


def _pause(every: Duration) -> float:
    pause = seconds(every, "every")
    expect(pause >= 0, "every", every, "use 0 or more seconds")
    return pause
