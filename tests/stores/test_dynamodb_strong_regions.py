"""Tables of DynamoDB with strong consistency across regions: no time to live, and one more refusal.

No emulator has them: the replies are those that AWS documents.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.stores.test_dynamodb import HOUR, KEY, A, B, store, throttled
from twicesafe import StoreError, StoreUnavailableError
from twicesafe._core.driving import drive
from twicesafe._core.protocol import Ack, ClaimRequest, Complete, Verdict
from twicesafe._engines.dynamodb import DynamodbStore
from twicesafe._engines.dynamodb.settings import Settings
from twicesafe._engines.dynamodb.table import examine, migrate, prepare
from twicesafe._engines.versioned import deciding

__all__ = ["store"]

CONFLICT = "ReplicatedWriteConflictException"


def test_a_write_that_meets_one_of_another_region_is_decided_again(store: DynamodbStore):
    """Such a table refuses one of two writes at the same moment; it says nothing about the item."""
    throttled(store, 1, CONFLICT)
    won = store.perform(ClaimRequest(KEY, A, HOUR))
    assert won.verdict is Verdict.WON
    throttled(store, 1, CONFLICT)
    assert store.perform(ClaimRequest(KEY, B, HOUR)).verdict is Verdict.BUSY
    throttled(store, 1, CONFLICT)
    assert store.perform(Complete(KEY.id, A, won.fence, HOUR, b"x")) is Ack.OK
    assert store.perform(ClaimRequest(KEY, B, HOUR)).result == b"x"


def test_writes_of_another_region_that_do_not_end_are_an_outage(
    store: DynamodbStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(deciding, "TRIES", 2)
    monkeypatch.setattr(store.programs, "load", lambda id_: iter_of(None))
    throttled(store, 1000, CONFLICT)
    with pytest.raises(StoreUnavailableError, match="nothing was written"):
        store.perform(ClaimRequest(KEY, A, HOUR))


def iter_of(found: Any) -> Any:
    yield from ()
    return found


def test_a_table_that_takes_no_time_to_live_is_used_without():
    def server(call: Any) -> Any:
        if call.operation == "describe_table":
            key = [{"AttributeName": "id", "KeyType": "HASH"}]
            kinds = [{"AttributeName": "id", "AttributeType": "B"}]
            return {
                "Table": {
                    "TableStatus": "ACTIVE", "KeySchema": key, "AttributeDefinitions": kinds,
                    "Replicas": [{}], "MultiRegionConsistency": "STRONG",
                }
            }  # fmt: skip
        if call.operation == "describe_time_to_live":
            return {"TimeToLiveDescription": {"TimeToLiveStatus": "DISABLED"}}
        raise StoreError("not possible on a table with multi-region strong consistency")

    settings = Settings.of("dynamodb://shop?region=eu-central-1")
    assert drive(prepare(settings), server) == []
    assert drive(migrate(settings), server) == [
        "no time to live: not possible on a table with multi-region strong consistency"
    ]
    found = drive(examine(settings), server)
    assert [each.level for each in found] == ["ok", "warn", "ok", "warn"]
    assert found[2].what == "several regions, strong consistency"
