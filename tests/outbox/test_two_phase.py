"""Two-phase transactions of PostgreSQL: an inbox may be part of one, an outbox may not."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from tests.polling import until
from twicesafe import Inbox, StillInProgressError
from twicesafe.outbox import Outbox, OutboxRelay


@pytest.fixture
def two_phase_url(own_server: Callable[..., Any]) -> str:
    return str(own_server("postgres", max_prepared_transactions="5").url)


def test_a_record_commits_with_its_prepared_transaction(two_phase_url: str) -> None:
    import psycopg

    with (
        Inbox.open(two_phase_url) as inbox,
        closing(psycopg.connect(two_phase_url)) as first,
        psycopg.connect(two_phase_url) as second,
    ):
        first.tpc_begin(first.xid(1, "both", "this"))
        assert inbox.accept(first, "m-1")
        first.tpc_prepare()
        with pytest.raises(StillInProgressError):
            inbox.options(policy=inbox.policy.replace(wait=0.1)).accept(second, "m-1")
        second.rollback()
        first.tpc_commit()
        assert not inbox.accept(second, "m-1")


def test_a_message_for_a_sleeping_relay_cannot_be_prepared(two_phase_url: str) -> None:
    """The transaction is rolled back, so nothing is lost. The page says so."""
    import psycopg

    with (
        Outbox.open(two_phase_url) as outbox,
        OutboxRelay(outbox.store, lambda message: None),
        closing(psycopg.connect(two_phase_url)) as connection,
    ):
        until(lambda: any(relay.is_idle for relay in outbox.relays().relays))
        connection.tpc_begin(connection.xid(1, "both", "this"))
        outbox.add(connection, topic="orders", body="1")
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="NOTIFY"):
            connection.tpc_prepare()
    with Outbox.open(two_phase_url) as outbox:
        assert outbox.depth().pending == 0
