"""twicesafe behind the verb of the scenarios."""

from __future__ import annotations

from twicesafe import Policy, Receiver

from .peer import WAIT, Guarded, Terms


class Adapter:
    def __init__(self, url: str, name: str) -> None:
        self._receiver = Receiver.open(url)

    def guard(self, function: Guarded, terms: Terms) -> Guarded:
        return self._receiver.options(scope=(terms.tenant,)).idempotent(
            key=lambda order: order["key"],
            fingerprint=(lambda order: order["payload"]) if terms.checks else None,
            policy=Policy(lease=terms.lease, wait=WAIT),
        )(function)

    def close(self) -> None:
        self._receiver.close()
