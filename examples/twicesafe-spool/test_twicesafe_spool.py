"""The complete test file of a source: how to open it, how to send, and what its broker cannot do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from twicesafe_spool import SpoolPublisher, SpoolSource

from twicesafe.testing import ConsumerConformance


class TestSpool(ConsumerConformance):
    breaks = restarts = False  # a folder has no connections, and nothing to restart

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.root = tmp_path

    def open_source(self) -> SpoolSource:
        return SpoolSource(self.root, "orders", ack_wait=1.0)

    def publisher_url(self) -> SpoolPublisher:
        return SpoolPublisher(self.root)

    def topic(self) -> str:
        return "orders"

    def lose(self, source: SpoolSource) -> None:
        """Nothing to do: a consumer that is dead touches no file."""

    def unsettled(self) -> int:
        return sum(
            1 for folder in ("ready", "held") for _ in (self.root / "orders" / folder).iterdir()
        )

    def dead_letters(self) -> list[str]:
        letters = sorted((self.root / "orders.dead" / "ready").iterdir())
        return [json.loads(path.read_bytes())["id"] for path in letters]
