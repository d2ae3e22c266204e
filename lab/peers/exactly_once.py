"""exactly-once behind the verb of the scenarios: its decorator, on PostgreSQL or Redis."""

from __future__ import annotations

from exactly_once import Store, auto_retry, once, wait

from .peer import WAIT, Guarded, Protection


class Adapter:
    def __init__(self, url: str, name: str) -> None:
        self._store = Store.redis(url) if url.startswith("redis") else Store.postgres(url)

    def guard(self, function: Guarded, protection: Protection) -> Guarded:
        return once(
            self._store,
            key=lambda order: order["key"],
            namespace=f"{protection.tenant}:{function.__name__}",
            fingerprint=(lambda order: order["payload"]) if protection.checks else None,
            policy=wait(WAIT) if protection.meets == "wait" else auto_retry,
            lease_ttl=protection.lease,
        )(function)

    def close(self) -> None:
        getattr(self._store, "close", lambda: None)()
