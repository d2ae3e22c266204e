"""Lanes in trouble: their order holds whatever the store's clock does, and they delay no other lane."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.outbox.stage import Broker, RelayMode, begin
from tests.polling import until
from twicesafe import Backoff
from twicesafe._core.outbox.requests import Fetch, Heartbeat, Setback, Settle, lane_of, slot_of
from twicesafe._engines.sql.outbox_programs import OutboxPrograms
from twicesafe.outbox import Outbox

Put = Callable[..., list[str]]

LANE = lane_of("k", "")
SLOT = slot_of(LANE)


@pytest.mark.parametrize("rest", range(20, 26))
def test_a_clock_that_goes_on_inside_a_statement_passes_over_no_row(postgres_url: str, rest: int):
    """A rest that ended while rows were looked at let the lane begin with its second or third row."""
    import psycopg

    from twicesafe._engines.postgresql.store import PostgresStore
    from twicesafe.stores._urls import open_store

    opened: Any = open_store(postgres_url)
    store = PostgresStore(opened.settings, now="nextval('ticks')")
    opened.close()
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE SEQUENCE ticks")
        connection.commit()
        with Outbox(store) as outbox:
            outbox.add_many(connection, [{"topic": "t", "body": b, "key": "k"} for b in "123456"])
            connection.commit()
            perform = store.outbox.perform
            fence = perform(Heartbeat(b"me", 1_000_000)).slots[SLOT]
            first = perform(Fetch([SLOT], 10, [])).rows[0].n
            refusal = Setback(SLOT, fence, LANE, first, 1, rest, "no")
            perform(Settle(b"me", [], {}, [refusal], {}))
            rows: list[Any] = []
            while not rows:
                rows = perform(Fetch([SLOT], 10, [])).rows
            assert rows[0].n == first


def test_the_clock_is_read_once_for_all_rows(postgres_url: str):
    import psycopg

    from twicesafe._engines.postgresql.store import PostgresStore
    from twicesafe.stores._urls import open_store

    opened: Any = open_store(postgres_url)
    store = PostgresStore(opened.settings, now="nextval('ticks')")
    opened.close()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE SEQUENCE ticks")
        with Outbox(store) as outbox:
            perform = store.outbox.perform
            slots = perform(Heartbeat(b"me", 1_000_000)).slots
            with connection.transaction():
                keys = [{"topic": "t", "body": "", "key": f"k{n}"} for n in range(5)]
                outbox.add_many(connection, keys)
            rows = perform(Fetch(list(slots), 10, [])).rows
            assert len({row.created_at for row in rows}) == 1
            refusals = [
                Setback(row.slot, slots[row.slot], row.lane, row.n, 1, 0, "no") for row in rows
            ]
            perform(Settle(b"me", [], {}, refusals, {}))
            before = connection.execute("SELECT last_value FROM ticks").fetchone()
            assert len(perform(Fetch(list(slots), 10, [])).rows) == 5
            after = connection.execute("SELECT last_value FROM ticks").fetchone()
            assert before is not None
            assert after == (before[0] + 1,)


def numbers(connection: Any, table: str) -> int:
    begin(connection)
    cursor = connection.cursor()
    cursor.execute(f"SELECT count(*) FROM {table}")
    (found,) = cursor.fetchone()
    connection.rollback()
    return int(found)


def test_a_resting_lane_with_a_large_backlog_is_out_of_the_way(
    mode: RelayMode,
    outbox: Outbox,
    put: Put,
    broker: Broker,
    caller: Callable[[], Any],
    monkeypatch: pytest.MonkeyPatch,
):
    """Relays looked through all that it had, for every message of any other lane."""
    monkeypatch.setattr(OutboxPrograms, "part", 100)
    connection = caller()
    connection.rollback()
    backlog = [f"{n}" for n in range(450)]
    broker.refuses = {"0"}
    put(*backlog, key="k")
    mode.relay(broker, batch=50, backoff=Backoff(first=3600)).start()
    until(lambda: numbers(connection, "twicesafe_outbox") == 1)
    assert numbers(connection, "twicesafe_outbox_parked") == 449
    depth = outbox.depth()
    assert (depth.pending, depth.resting_lanes, depth.parked) == (450, 1, 0)
    put("other", key="k2")
    broker.wait_for(1)
    put("late", key="k")
    until(lambda: numbers(connection, "twicesafe_outbox") == 1)
    # Its rest is over, and it is taken: all the others follow, part by part, in order.
    broker.refuses = set()
    begin(connection)
    connection.cursor().execute("UPDATE twicesafe_outbox_troubles SET not_before = 0")
    connection.commit()
    broker.wait_for(452)
    assert broker.bodies == ["other", *backlog, "late"]
    until(lambda: outbox.depth().pending == 0)
    assert numbers(connection, "twicesafe_outbox_parked") == 0
    assert numbers(connection, "twicesafe_outbox_troubles") == 0


def test_a_lane_that_comes_back_in_parts_may_be_refused_again(
    mode: RelayMode, outbox: Outbox, put: Put, broker: Broker, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(OutboxPrograms, "part", 4)
    bodies = [f"{n}" for n in range(20)]
    broker.refuses = {"0", "6", "13"}
    put(*bodies, key="k")
    relay = mode.relay(broker, max_attempts=1, batch=3)
    for stop in ("0", "6", "13"):
        relay.drain()
        while not (parked := outbox.parked()):
            relay.drain()
        relay.drain()
        assert broker.tried[-1] == stop
        broker.refuses.discard(stop)
        outbox.retry(parked[0].lane, by="ana")
    while outbox.depth().pending:
        relay.drain()
    assert broker.bodies == bodies


def test_what_another_relay_published_keeps_no_lane_waiting(
    outbox: Outbox, put: Put, mode: RelayMode, broker: Broker
):
    """It had fetched the message before it was refused: it deletes the row, and knows of no trouble."""
    put("1", "2", "3", key="k")
    perform = outbox.store.outbox.perform
    fence = perform(Heartbeat(b"me", 60_000)).slots[SLOT]
    rows = perform(Fetch([SLOT], 10, [])).rows
    perform(Settle(b"me", [], {}, [Setback(SLOT, fence, LANE, rows[0].n, 1, 0, "no")], {}))
    fetched = perform(Fetch([SLOT], 10, []))
    assert [row.n for row in fetched.rows] == [rows[0].n]
    assert fetched.aside == {LANE: [rows[1].n, rows[2].n]}
    perform(Settle(b"me", [], {}, [], fetched.aside))
    perform(Settle(b"other", [rows[0].n], {}, [], {}))
    assert outbox.depth().pending == 2
    perform(Heartbeat(b"me", 0, leave=True))
    assert mode.relay(broker).drain() == 2
    assert broker.bodies == ["2", "3"]
