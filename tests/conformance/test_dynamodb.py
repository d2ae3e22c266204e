"""DynamoDB keeps every rule, on the emulator of AWS that the tests start, and on AWS's own server if
`make dynamodb` has fetched it.

`TestDynamodb` believes all clocks (``skew=0``): the clock of the test is the time of the service, so a
store object takes over from a worker that it has never seen. `TestWatchedOnly` believes no clock: a lease
is over only for a store object that has watched it, to the millisecond.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from tests.conformance.selections import Awaited, Watched
from tests.servers import shared
from twicesafe._engines.dynamodb import AsyncDynamodbStore, DynamodbStore
from twicesafe._engines.dynamodb.settings import Settings
from twicesafe._engines.versioned.lease_watch import GivenClock
from twicesafe.testing import Place, StoreConformance, StoreUnderTest


class Dynamodb(StoreUnderTest):
    """Tables are used again and again, emptied in between: that takes fewer calls than making them.

    They have no time to live: the clock of the tests is in the past, and the emulator deletes by its own.
    """

    server: ClassVar[str] = "dynamodb"
    skew: ClassVar[str] = "0"
    options: ClassVar[str] = ""
    _free: ClassVar[list[str]] = []
    _taken: ClassVar[dict[str, str]] = {}

    def _table(self, place: Place) -> str:
        table = self._taken.get(place.name)
        if table is None:
            table = self._free.pop() if self._free else self._made(place.name)
            self._taken[place.name] = table
        return table

    def _made(self, table: str) -> str:
        self._client().create_table(
            TableName=table,
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "B"}],
            BillingMode="PAY_PER_REQUEST",
        )
        return table

    def _settings(self, place: Place) -> Settings:
        url = shared(self.server).table_url(self._table(place))
        return Settings.of(f"{url}&skew={self.skew}{self.options}")

    def open_store(self, place: Place) -> DynamodbStore:
        return DynamodbStore(self._settings(place), GivenClock(place.clock))

    def open_async_store(self, place: Place) -> AsyncDynamodbStore:
        return AsyncDynamodbStore(self._settings(place), GivenClock(place.clock))

    def corrupt(self, place: Place, id: bytes) -> None:  # noqa: A002
        self._client().update_item(
            TableName=self._table(place),
            Key={"id": {"B": id}},
            UpdateExpression="SET #state = :wrong",
            ExpressionAttributeNames={"#state": "state"},
            ExpressionAttributeValues={":wrong": {"S": "99"}},
        )

    def refuse(self, place: Place) -> bytes:
        return b"R" * 410_000  # no item may have more than 400 KB

    def tidy(self, place: Place) -> None:
        table = self._taken.pop(place.name, None)
        if table is not None:
            empty(self._client(), table)
            self._free.append(table)

    def _client(self) -> Any:
        return shared(self.server).client()


def empty(client: Any, table: str) -> None:
    for page in client.get_paginator("scan").paginate(TableName=table, ProjectionExpression="id"):
        for key in page["Items"]:
            client.delete_item(TableName=table, Key=key)


@pytest.mark.usefixtures("dynamodb")
class TestDynamodb(Dynamodb, StoreConformance):
    modes = ("blocking",)


@pytest.mark.usefixtures("dynamodb")
class TestDynamodbAsync(Dynamodb, Awaited):
    pass


@pytest.mark.usefixtures("dynamodb_local")
class TestDynamodbLocal(Dynamodb, StoreConformance):
    modes = ("blocking",)
    server = "dynamodb_local"
    _free: ClassVar[list[str]] = []
    _taken: ClassVar[dict[str, str]] = {}


@pytest.mark.usefixtures("dynamodb_local")
class TestDynamodbLocalAsync(Dynamodb, Awaited):
    server = "dynamodb_local"
    _free = TestDynamodbLocal._free
    _taken = TestDynamodbLocal._taken


@pytest.mark.usefixtures("dynamodb")
class TestWatchedOnly(Dynamodb, Watched):
    modes = ("blocking",)
    skew = "3600"
