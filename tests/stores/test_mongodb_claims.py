"""A claim writes the document of its record without making the record first: both are the same."""

from __future__ import annotations

import pytest

from twicesafe import Key
from twicesafe._core.protocol import ClaimRequest
from twicesafe._engines.mongodb.documents import insert_claim, upsert
from twicesafe._engines.mongodb.programs import MongodbPrograms
from twicesafe._engines.versioned.lease_watch import GivenClock, LeaseWatch

NOW = 1_700_000_000_123
ASKS = {
    "plain": ClaimRequest(Key("k"), b"o" * 16, 30_000),
    "scope": ClaimRequest(Key("k", scope=("shop", "é")), b"o" * 16, 30_000),
    "not ascii": ClaimRequest(Key("schlüssel"), b"o" * 16, 30_000),
    "fingerprint": ClaimRequest(Key("k"), b"o" * 16, 30_000, fingerprint=b"f" * 32),
    "hold": ClaimRequest(Key("k"), b"o" * 16, 1, hold=True),
}


@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
def test_the_document_of_a_claim_is_that_of_its_record(ask: ClaimRequest):
    programs = MongodbPrograms(LeaseWatch(GivenClock(lambda: NOW), 1.0))
    _, after = programs.decide(ask, None)
    assert after is not None
    direct, made = insert_claim(ask, NOW), upsert(after)
    assert direct == made
    assert list(direct.arguments[1]["$setOnInsert"]) == list(made.arguments[1]["$setOnInsert"])
