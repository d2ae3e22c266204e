"""aws-lambda-powertools behind the verb of the scenarios: its function decorator, on Valkey.

Its lease is the time that the Lambda invocation has left, so the scenarios play Lambda. As its guide
does, one persistence layer serves all functions; only another configuration has its own layer.
"""

from __future__ import annotations

import functools
from dataclasses import is_dataclass
from typing import Any

import redis
from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent_function
from aws_lambda_powertools.utilities.idempotency.persistence.cache import CachePersistenceLayer
from aws_lambda_powertools.utilities.idempotency.serialization.dataclass import DataclassSerializer

from .peer import Guarded, Order, Protection


class Adapter:
    def __init__(self, url: str, name: str) -> None:
        self._client = redis.Redis.from_url(url, decode_responses=True)
        self._layer = functools.cache(lambda checks: CachePersistenceLayer(client=self._client))

    def guard(self, function: Guarded, protection: Protection) -> Guarded:
        config = IdempotencyConfig(
            event_key_jmespath="key",
            payload_validation_jmespath="payload" if protection.checks else "",
        )
        config.register_lambda_context(_Invocation(protection.lease))
        rich = is_dataclass(function.__annotations__["return"])
        guarded = idempotent_function(
            function,
            data_keyword_argument="order",
            persistence_store=self._layer(protection.checks),
            config=config,
            output_serializer=DataclassSerializer if rich else None,
            key_prefix=f"{protection.tenant}.{function.__name__}",
        )

        def call(order: Order) -> Any:
            return guarded(order=order)

        return call

    def close(self) -> None:
        self._client.close()


class _Invocation:
    """What powertools reads of a Lambda context."""

    def __init__(self, lease: float) -> None:
        self._lease = lease

    def get_remaining_time_in_millis(self) -> int:
        return int(self._lease * 1000)
