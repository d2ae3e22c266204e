"""What the author of a store tells the suite: how to open it, and how its time passes."""

from __future__ import annotations

import itertools
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from ...stores._base import AsyncStore, Store
from .._clock import FakeClock

__all__ = ["Place", "StoreUnderTest"]

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Place:
    """Where one test's store lives: empty at first, shared with nobody."""

    folder: Path
    """For stores in files."""
    name: str = field(default_factory=lambda: f"t{os.getpid()}_{next(_numbers)}")
    """For stores on servers: fit for a table, a prefix or a collection."""
    clock: FakeClock = field(default_factory=FakeClock)
    """For stores that take their clock as an argument."""


_MISSING = "write {}; or say colours = ({!r},), if the store has no other"


class StoreUnderTest:
    """What the author of a store fills in. The first two are all that most stores need."""

    colours: ClassVar[tuple[str, ...]] = ("blocking", "async")
    """In which every rule is tried; a store of one colour says which, and opens only that one."""

    real_clock: ClassVar[bool] = False
    """The store's clock cannot be set: wait for real, in short ticks."""

    def open_store(self, place: Place) -> Store:
        """A new store object on the data of this place."""
        raise NotImplementedError(_MISSING.format("open_store", "async"))

    def open_async_store(self, place: Place) -> AsyncStore:
        """The same, awaitable. A plain call, with or without a running event loop."""
        raise NotImplementedError(_MISSING.format("open_async_store", "blocking"))

    def advance(self, place: Place, ms: int) -> None:
        """Let the store's time pass."""
        if self.real_clock:
            time.sleep(ms / 1000)
        else:
            place.clock.advance(ms=ms)

    def corrupt(self, place: Place, id: bytes) -> None:  # noqa: A002
        """Optional: damage this key's row so that it cannot be understood."""
        raise NotImplementedError

    def refuse(self, place: Place) -> bytes:
        """Optional: from now on the store of this place says no to this payload, and to no other request.

        By a limit of its server, a trigger, a quota: whatever its users may meet. Undone by `tidy`.
        """
        raise NotImplementedError

    def tidy(self, place: Place) -> None:
        """Optional: remove what a test leaves on a server."""
