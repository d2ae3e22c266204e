"""justonce behind the verb of the scenarios: its decorator, on PostgreSQL."""

from __future__ import annotations

from justonce import Idempotent, OnInFlight, idempotent, operation_key
from justonce.stores.postgres import PostgresStore

from .peer import WAIT, Guarded, Protection


class Adapter:
    def __init__(self, url: str, name: str) -> None:
        self._store = PostgresStore(url)

    def guard(self, function: Guarded, protection: Protection) -> Guarded:
        engine = Idempotent(
            self._store,
            ttl_seconds=protection.lease,
            on_in_flight=OnInFlight.WAIT,
            wait_timeout=WAIT,
        )
        return idempotent(
            key=lambda order: operation_key(function.__name__, protection.tenant, order["key"]),
            payload=lambda order: order["payload"],
            engine=engine,
        )(function)

    def close(self) -> None:
        """It opens a connection for every operation, and keeps none."""
