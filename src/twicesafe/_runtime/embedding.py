"""The embedding model of the extra ``semantic``: wordllama, whose weights are in its wheel. Nothing is downloaded.

Importing wordllama configures the root logger, which belongs to the application. This module undoes that.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .._core.similarity.reading import Embedding
from .._values.drivers import driver
from ..errors import ConfigurationError

__all__ = ["load_embedding"]


def load_embedding() -> Embedding:
    """The model, loaded now. `ConfigurationError`: the extra is not installed, or has no weights."""
    with driver("wordllama"), _own_logging():
        import wordllama
    place = Path(wordllama.__file__).parent
    try:
        model: Any = wordllama.WordLlama.load(cache_dir=place, disable_download=True)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"the embedding model cannot be loaded from the files of wordllama ({error}); "
            "install the extra semantic again"
        ) from error

    def embed(text: str) -> array[float]:
        (vector,) = model.embed([text], norm=True)
        return array("f", vector.tolist())

    return embed


@contextmanager
def _own_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
