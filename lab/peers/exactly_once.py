"""exactly-once behind the verb of the scenarios: its decorator, on PostgreSQL or Redis."""

from __future__ import annotations

from exactly_once import Store, auto_retry, once, wait

from .peer import WAIT, Guarded, Terms


class Adapter:
    def __init__(self, url: str, name: str) -> None:
        self._store = Store.redis(url) if url.startswith("redis") else Store.postgres(url)

    def guard(self, function: Guarded, terms: Terms) -> Guarded:
        return once(
            self._store,
            key=lambda order: order["key"],
            namespace=f"{terms.tenant}:{function.__name__}",
            fingerprint=(lambda order: order["payload"]) if terms.checks else None,
            policy=wait(WAIT) if terms.meets == "wait" else auto_retry,
            lease_ttl=terms.lease,
        )(function)

    def close(self) -> None:
        getattr(self._store, "close", lambda: None)()
