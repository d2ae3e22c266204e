"""twicesafe behind the verb of the scenarios."""

from __future__ import annotations

from twicesafe import Policy, Receiver

from .peer import WAIT, Guarded, Protection


class Adapter:
    def __init__(self, url: str, name: str) -> None:
        self._receiver = Receiver.open(url)

    def guard(self, function: Guarded, protection: Protection) -> Guarded:
        return self._receiver.options(scope=(protection.tenant,)).idempotent(
            key=lambda order: order["key"],
            fingerprint=(lambda order: order["payload"]) if protection.checks else None,
            policy=Policy(lease=protection.lease, wait=WAIT),
        )(function)

    def close(self) -> None:
        self._receiver.close()
