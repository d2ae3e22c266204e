"""What all tests of consumers share."""

from __future__ import annotations

import pytest

from tests.servers.kafka import broker
from twicesafe.consumers.sources import kafka


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mock does not answer questions about settings: we wait for nothing, and then continue without."""
    if broker() == "mock":
        monkeypatch.setattr(kafka, "ADMIN", 4.0)
