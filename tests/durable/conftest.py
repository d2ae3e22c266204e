from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.durable.shop import Shop


@pytest.fixture(params=["blocking", "async"])
def shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    shop = Shop(request.param)
    yield shop
    shop.close()
