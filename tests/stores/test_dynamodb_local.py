"""What only AWS's own server can show (`make dynamodb`): it deletes by time to live."""

from __future__ import annotations

from tests.polling import until
from twicesafe import Key
from twicesafe._core.protocol import ClaimRequest, Complete, Read, Verdict
from twicesafe._engines.dynamodb import DynamodbStore
from twicesafe._engines.dynamodb.settings import Settings
from twicesafe._engines.versioned.lease_watch import GivenClock
from twicesafe._values.clocks import wall_clock

OWNER, OTHER = b"a" * 16, b"b" * 16
HOUR = 3_600_000


def test_the_server_deletes_expired_records_and_no_others(dynamodb_local_url: str):
    """They were written three hours ago, and kept for a second; the spare hour is over too."""
    clock = [wall_clock() - 3 * HOUR]
    store = DynamodbStore(Settings.of(dynamodb_local_url), GivenClock(lambda: clock[0]))
    try:
        done, running = Key("done"), Key("running")
        won = store.perform(ClaimRequest(done, OWNER, 1000))
        store.perform(ClaimRequest(running, OWNER, 1000))
        store.perform(Complete(done.id, OWNER, won.fence, 1000, b"answer"))
        items = store._connect()
        arguments = {"TableName": store.settings.table, "ConsistentRead": True}
        until(lambda: "Item" not in items.get_item(Key={"id": {"B": done.id}}, **arguments))
        row = store.perform(Read(running.id))
        assert row is not None
        assert row.owner == OWNER  # P6: whatever its age
        clock[0] = wall_clock()
        again = store.perform(ClaimRequest(done, OTHER, HOUR))
        assert again.verdict is Verdict.WON
        assert again.fence > won.fence  # P3
    finally:
        store.close()
