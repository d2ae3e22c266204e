"""What the author of a store fills in: how to open it, and how its time passes."""

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
    """Where the store of one test keeps its data: empty at first, and used by no other test."""

    folder: Path
    """For stores in files."""
    name: str = field(default_factory=lambda: f"t{os.getpid()}_{next(_numbers)}")
    """For stores on servers: a valid name of a table, a prefix or a collection."""
    clock: FakeClock = field(default_factory=FakeClock)
    """For stores that take their clock as an argument."""


_MISSING = "implement {}; or set modes = ({!r},), if the store has no other"


class StoreUnderTest:
    """What the author of a store fills in. The first two are all that most stores need."""

    modes: ClassVar[tuple[str, ...]] = ("blocking", "async")
    """Every rule is tested in each of these. A store that has only one of them names that one."""

    real_clock: ClassVar[bool] = False
    """The store's clock cannot be set: tests really wait, for short times."""

    def open_store(self, place: Place) -> Store:
        """A new store object on the data of this place."""
        raise NotImplementedError(_MISSING.format("open_store", "async"))

    def open_async_store(self, place: Place) -> AsyncStore:
        """The async version. A plain call, with or without a running event loop."""
        raise NotImplementedError(_MISSING.format("open_async_store", "blocking"))

    def advance(self, place: Place, ms: int) -> None:
        """Let the store's time pass."""
        if self.real_clock:
            time.sleep(ms / 1000)
        else:
            place.clock.advance(ms=ms)

    def corrupt(self, place: Place, id: bytes) -> None:  # noqa: A002
        """Optional: damage this key's row, so that it cannot be read."""
        raise NotImplementedError

    def refuse(self, place: Place) -> bytes:
        """Optional: from now on the store of this place refuses this payload, and no other request.

        Use what its users may run into: a limit of the server, a trigger, a quota. Undone by `tidy`.
        """
        raise NotImplementedError

    def tidy(self, place: Place) -> None:
        """Optional: remove what a test leaves on a server."""
