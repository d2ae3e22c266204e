"""What a place of an archive can do, and the one error for one that fails."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from ..errors import StoreUnavailableError

__all__ = ["Place", "failed"]


class Place(Protocol):
    """A directory or a bucket with files that are written once."""

    def write(self, folder: str, content: bytes) -> None:
        """Add a file; when it returns, the file is whole and durable. Until then, it is in no list."""
        ...

    def names(self, folder: str) -> Iterable[str]:
        """The files of this folder, or of all folders (empty)."""
        ...

    def read(self, name: str) -> bytes: ...


def failed(what: str, error: Exception) -> StoreUnavailableError:
    return StoreUnavailableError(
        f"the archive could not be {what} ({type(error).__name__}: {error}); no answer was erased that is not "
        "in the archive; run it again when the archive can be reached"
    )
