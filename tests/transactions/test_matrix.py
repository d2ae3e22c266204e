"""The matrix: every way to switch transactions off or nest them is refused, or atomic to the server."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.servers import launch
from tests.servers.fixtures import having
from tests.servers.pgbouncer import PgBouncer
from tests.transactions import ways, wrapped
from tests.transactions.trying import Shop, Trial
from tests.transactions.ways import Way

ROUNDS = (("accept", False), ("accept", True), ("process", False), ("add", False))
"""What is asked of twicesafe, and whether the user commits."""


@pytest.fixture(scope="module")
def shop_of(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Way], tuple[Shop, str]]]:
    """The shop for a way, and where its door leads: there, or to a pooler before it."""
    servers: dict[str, Any] = {}
    shops: dict[str, Shop] = {}
    with contextlib.ExitStack() as stack:

        def server(way: Way) -> Any:
            if way.place != "unusual":
                return request.getfixturevalue(way.engine)
            settings = {"autocommit": "0", "init_connect": "SET autocommit = 1"}
            found = having(lambda: launch("mariadb", **settings), "mariadb")
            stack.callback(found.remove)
            found.execute("CREATE USER guest")  # init_connect is not run for root
            found.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON *.* TO guest")
            return found

        def shop(way: Way) -> Shop:
            name = way.place if way.place == "unusual" else way.engine
            if name not in shops:
                if name == "sqlite":
                    url = f"sqlite:///{tmp_path_factory.mktemp('matrix') / 'shop.db'}"
                else:
                    url = stack.enter_context(server(way).fresh())
                shops[name] = Shop(way.engine, url)
                stack.callback(shops[name].close)
            return shops[name]

        def both(way: Way) -> tuple[Shop, str]:
            found = shop(way)
            if way.place not in ("transaction", "statement"):
                return found, found.url
            if way.place not in servers:
                pooler = having(lambda: PgBouncer(server(way), mode=way.place), "pgbouncer")
                stack.callback(pooler.remove)
                having(pooler.start, "pgbouncer")
                servers[way.place] = pooler
            return found, servers[way.place].url_of(found.url.rpartition("/")[2])

        yield both


@pytest.mark.parametrize("way", [pytest.param(way, id=way.id) for way in ways.ALL + wrapped.ALL])
def test_refused_or_atomic(shop_of: Callable[[Way], tuple[Shop, str]], way: Way):
    trial = Trial(way, *shop_of(way))
    try:
        found = {each: trial.once(*each) for each in ROUNDS}
    finally:
        trial.close()
    if way.verdict == "fails":  # by an error of the database, which ends it all
        found = {
            each: "fails" if what.startswith(("fails", "refused")) else what
            for each, what in found.items()
        }
    assert found == dict.fromkeys(ROUNDS, "" if way.verdict == "atomic" else way.verdict)
