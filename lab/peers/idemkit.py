"""idemkit behind the verb of the scenarios: its blocking decorator, on PostgreSQL or Redis."""

from __future__ import annotations

import asyncio
import json
import warnings
from dataclasses import is_dataclass
from typing import Any

import idemkit as kit
from idemkit.backends.postgres import init_pg

from .peer import WAIT, Guarded, Order, Protection


class Adapter:
    def __init__(self, url: str, name: str) -> None:
        self._backend: Any
        if url.startswith("redis"):
            self._backend = kit.RedisBackend.from_url(url)
        else:
            asyncio.run(init_pg(url))
            self._backend = kit.PostgresBackend.from_url(url)

    def guard(self, function: Guarded, protection: Protection) -> Guarded:
        rich = is_dataclass(function.__annotations__["return"])
        config = kit.MethodConfig(
            key_fields=["order.key"],
            scope=lambda: protection.tenant,
            validation_fingerprint=_payload if protection.checks else None,
            result_codec="dataclass" if rich else "json",
            lease_ttl_seconds=protection.lease,
            wait_timeout_seconds=WAIT,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return kit.idempotent_sync(backend=self._backend, config=config)(function)

    def close(self) -> None:
        """It closes its connections itself, at the end of the process."""


def _payload(arguments: Order) -> bytes:
    return json.dumps(arguments["order"]["payload"], sort_keys=True).encode()
