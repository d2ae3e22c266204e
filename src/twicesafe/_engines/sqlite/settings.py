"""The URL of a SQLite store: the path of its file, and options."""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote

from ...errors import ConfigurationError

__all__ = ["OPTIONS", "path_of"]

OPTIONS: Final = {"synchronous": "full", "timeout": 5.0, "table": "twicesafe", "migrate": True}


def path_of(url: str) -> str:
    start = "sqlite:///"
    path = unquote(url.partition("?")[0][len(start) :]) if url.startswith(start) else ""
    if not path or path == ":memory:" or path.startswith("file:") or "\0" in path:
        raise ConfigurationError(
            "a SQLite URL is sqlite:///file.db or sqlite:////absolute/file.db; "
            "for a store without a file use memory://"
        )
    return path
