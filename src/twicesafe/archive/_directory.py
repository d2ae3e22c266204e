"""An archive in a directory. A file appears under its name when it is whole and synced, never before."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from .._values.keys import uuid7
from ._places import failed

__all__ = ["Directory"]

_PART: Final = ".part"


class Directory:
    """Only its owner may read what it creates: answers may be personal."""

    def __init__(self, path: str) -> None:
        self._root = Path(path)

    def write(self, folder: str, content: bytes) -> None:
        try:
            self._write(self._folder(folder), content)
        except OSError as error:
            raise failed("written", error) from error

    def _write(self, folder: Path, content: bytes) -> None:
        name = f"{uuid7()}.jsonl"
        part = folder / f"{name}{_PART}"
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with open(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.rename(part, folder / name)
        except OSError:
            part.unlink(missing_ok=True)
            raise
        _sync(folder)

    def _folder(self, name: str) -> Path:
        folder = self._root / name
        if not folder.is_dir():
            missing = [path for path in (folder, *folder.parents) if not path.is_dir()]
            for path in reversed(missing):
                path.mkdir(mode=0o700, exist_ok=True)
                _sync(path.parent)  # a new directory must not vanish with its files
        return folder

    def names(self, folder: str) -> Iterator[str]:
        try:
            for path in self._root.glob(f"{folder or 'day=*'}/*.jsonl"):
                yield f"{path.parent.name}/{path.name}"
        except OSError as error:
            raise failed("listed", error) from error

    def read(self, name: str) -> bytes:
        try:
            return (self._root / name).read_bytes()
        except OSError as error:
            raise failed("read", error) from error


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
