from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .worlds import Places


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Places]:
    with Places(tmp_path) as places:
        yield places
