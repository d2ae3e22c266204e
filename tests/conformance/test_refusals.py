"""The suite rejects stores that are wrong about a payload that they refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conformance.stores import LimitedMemory, Memory
from twicesafe._core.protocol import Ack, Fail, Request
from twicesafe.errors import StoreError, StoreUnavailableError
from twicesafe.testing import Place, StoreConformance, check


class Swallows(LimitedMemory):
    """Says OK to what it did not write."""

    def perform(self, request: Request) -> Any:
        try:
            return super().perform(request)
        except StoreError:
            return Ack.OK


class Releases(LimitedMemory):
    """Gives the key back, so that the next delivery runs it again."""

    def perform(self, request: Request) -> Any:
        try:
            return super().perform(request)
        except StoreError:
            ask: Any = request
            super().perform(Fail(ask.id, ask.owner, ask.fence, 0, 5, 1000))
            raise


class Sinks(LimitedMemory):
    """One refused item makes every other one fail, whenever it is asked."""

    sunk = False

    def perform_many(self, requests: Any) -> list[Any]:
        if any(len(getattr(ask, "result", None) or b"") > self.most for ask in requests):
            self.sunk = True
            return [StoreUnavailableError("sunk") for _ in requests]
        return super().perform_many(requests)

    def perform(self, request: Request) -> Any:
        if self.sunk:
            raise StoreUnavailableError("sunk")
        return super().perform(request)


CHANGES = "test_a_refused_payload_changes_nothing_and_the_claim_can_complete[completed]"


@pytest.mark.parametrize(
    "kind, rejected_by",
    [
        (Swallows, CHANGES),
        (Releases, CHANGES),
        (Sinks, "test_one_refused_request_does_not_fail_its_batch"),
    ],
)
def test_a_broken_store_is_rejected(kind: type[LimitedMemory], rejected_by: str, tmp_path: Path):
    class Suite(Memory, StoreConformance):
        def open_store(self, place: Place) -> LimitedMemory:
            store = self._opened[place.name] = kind(now=place.clock)
            return store

    [found] = check(Suite(), tmp_path, ["blocking"], only=[rejected_by])
    assert found.verdict == "broken", found
