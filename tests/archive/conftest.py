"""The two places of an archive, and a store with answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from twicesafe import Receiver


@pytest.fixture(params=["directory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "directory":
        return str(tmp_path / "archive" / "of" / "answers")
    return request.getfixturevalue("s3_url")  # type: ignore[no-any-return]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'keys.db'}"


@pytest.fixture
def receiver(url: str) -> Iterator[Receiver]:
    with Receiver.open(url, scope=("tenant",)) as receiver:
        yield receiver
