"""The floor on DynamoDB: one conditional put, one conditional update, by boto3 and aiobotocore as anybody would.

The item has state, fence, end, owner and result. Time is the worker's: DynamoDB has none to compare.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from .floors import BusyError, LostError

TABLE = "floor"
LEASE, RETENTION = 30_000, 86_400_000
_owners = itertools.count(1)


def place_of(url: str) -> dict[str, str]:
    options = dict(parse_qsl(urlsplit(url).query))
    return {"region_name": options["region"], "endpoint_url": options["endpoint"]}


def make_table(url: str) -> None:
    import boto3

    client = boto3.session.Session().client("dynamodb", **place_of(url))
    with contextlib.suppress(client.exceptions.ResourceInUseException):
        client.create_table(
            TableName=TABLE,
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
    client.close()


def _now() -> int:
    return time.time_ns() // 1_000_000


def _put(key: str, owner: bytes, fence: int, now: int) -> dict[str, Any]:
    return {
        "TableName": TABLE,
        "Item": {
            "id": {"S": key},
            "state": {"N": "0"},
            "fence": {"N": str(fence)},
            "until": {"N": str(now + LEASE)},
            "owner": {"B": owner},
        },
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }


def claiming(key: str, owner: bytes) -> dict[str, Any]:
    return _put(key, owner, 1, _now()) | {"ConditionExpression": "attribute_not_exists(id)"}


def taking_over(key: str, owner: bytes, fence: int) -> dict[str, Any]:
    return _put(key, owner, fence + 1, _now()) | {
        "ConditionExpression": "fence = :fence",
        "ExpressionAttributeValues": {":fence": {"N": str(fence)}},
    }


def completing(key: str, owner: bytes, fence: int, payload: bytes) -> dict[str, Any]:
    return {
        "TableName": TABLE,
        "Key": {"id": {"S": key}},
        "UpdateExpression": "SET #state = :done, #until = :until, #result = :result",
        "ConditionExpression": "#owner = :owner AND fence = :fence AND #state = :running",
        "ExpressionAttributeNames": {
            "#state": "state",
            "#until": "until",
            "#result": "result",
            "#owner": "owner",
        },
        "ExpressionAttributeValues": {
            ":done": {"N": "1"},
            ":until": {"N": str(_now() + RETENTION)},
            ":result": {"B": payload},
            ":owner": {"B": owner},
            ":fence": {"N": str(fence)},
            ":running": {"N": "0"},
        },
    }


def found_in(item: dict[str, Any]) -> tuple[int, bytes | None]:
    """The fence, and the result of a key that is done; None: the lease or the retention is over."""
    if int(item["until"]["N"]) > _now():
        if item["state"]["N"] == "1":
            return int(item["fence"]["N"]), bytes(item["result"]["B"])
        raise BusyError
    return int(item["fence"]["N"]), None


def new_owner() -> bytes:
    return b"0123456789" + next(_owners).to_bytes(6, "big")


class DynamodbFloor:
    def __init__(self, url: str) -> None:
        import boto3
        from botocore.config import Config

        make_table(url)
        config = Config(max_pool_connections=50, parameter_validation=False)
        self._client: Any = boto3.session.Session().client(
            "dynamodb", **place_of(url), config=config
        )
        self._refused = self._client.exceptions.ConditionalCheckFailedException

    def claim(self, key: str) -> tuple[bytes, int, bytes | None]:
        owner = new_owner()
        try:
            self._client.put_item(**claiming(key, owner))
        except self._refused as refusal:
            fence, result = found_in(refusal.response["Item"])
            if result is not None:
                return b"", fence, result
            self._client.put_item(**taking_over(key, owner, fence))
            return owner, fence + 1, None
        return owner, 1, None

    def complete(self, key: str, owner: bytes, fence: int, payload: bytes) -> None:
        try:
            self._client.update_item(**completing(key, owner, fence, payload))
        except self._refused as refusal:
            raise LostError from refusal

    def close(self) -> None:
        self._client.close()


class AsyncDynamodbFloor:
    def __init__(self, url: str) -> None:
        make_table(url)
        self._url = url
        self._client: Any = None

    async def _connected(self) -> Any:
        from aiobotocore.config import AioConfig
        from aiobotocore.session import get_session

        config = AioConfig(max_pool_connections=50, parameter_validation=False)
        made = get_session().create_client("dynamodb", **place_of(self._url), config=config)
        self._client = await made.__aenter__()
        self._refused = self._client.exceptions.ConditionalCheckFailedException
        return self._client

    async def claim(self, key: str) -> tuple[bytes, int, bytes | None]:
        client = self._client or await self._connected()
        owner = new_owner()
        try:
            await client.put_item(**claiming(key, owner))
        except self._refused as refusal:
            fence, result = found_in(refusal.response["Item"])
            if result is not None:
                return b"", fence, result
            await client.put_item(**taking_over(key, owner, fence))
            return owner, fence + 1, None
        return owner, 1, None

    async def complete(self, key: str, owner: bytes, fence: int, payload: bytes) -> None:
        try:
            await self._client.update_item(**completing(key, owner, fence, payload))
        except self._refused as refusal:
            raise LostError from refusal

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
