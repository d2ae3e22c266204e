"""MongoDB keeps every rule, on the server that `make mongodb` builds.

As with DynamoDB, `TestMongodb` believes all clocks (``skew=0``), and `TestWatchedOnly` none.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from tests.conformance.selections import Awaited, Watched
from tests.servers import shared
from twicesafe._engines.mongodb import AsyncMongodbStore, MongodbStore
from twicesafe._engines.mongodb.settings import Settings
from twicesafe._engines.versioned.lease_watch import GivenClock
from twicesafe.testing import Place, StoreConformance, StoreUnderTest


class Mongodb(StoreUnderTest):
    skew: ClassVar[str] = "0"

    def _settings(self, place: Place) -> Settings:
        url = shared("mongodb").url
        return Settings.of(f"{url}&collection={place.name}&skew={self.skew}&migrate=false")

    def _collection(self, place: Place) -> Any:
        return shared("mongodb").client()["twicesafe"][place.name]

    def open_store(self, place: Place) -> MongodbStore:
        return MongodbStore(self._settings(place), GivenClock(place.clock))

    def open_async_store(self, place: Place) -> AsyncMongodbStore:
        return AsyncMongodbStore(self._settings(place), GivenClock(place.clock))

    def corrupt(self, place: Place, id: bytes) -> None:  # noqa: A002
        self._collection(place).update_one({"_id": id.hex()}, {"$set": {"state": "99"}})

    def refuse(self, place: Place) -> bytes:
        return b"R" * 17_000_000  # no document may have more than 16 MB

    def tidy(self, place: Place) -> None:
        self._collection(place).drop()


@pytest.mark.usefixtures("mongodb")
class TestMongodb(Mongodb, StoreConformance):
    modes = ("blocking",)


@pytest.mark.usefixtures("mongodb")
class TestMongodbAsync(Mongodb, Awaited):
    pass


@pytest.mark.usefixtures("mongodb")
class TestWatchedOnly(Mongodb, Watched):
    modes = ("blocking",)
    skew = "3600"
