"""What PyMongo leaves behind, so that no later test is blamed for it."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def sockets_of_the_driver() -> Iterator[None]:
    """An async client that is closed while it connects does not close that socket (PyMongo 4)."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
