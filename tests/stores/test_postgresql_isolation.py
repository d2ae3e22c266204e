"""A database whose default isolation is not READ COMMITTED: the store keeps to its own level.

At a higher level single statements fail where they meet ("could not serialize access"), and who
waited for a migration does not see that it was made.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.conformance.selections import Isolated
from tests.conformance.test_postgresql import Postgres
from tests.servers import NoServerError
from tests.servers.pgbouncer import PgBouncer
from tests.stores.drivers import KINDS, DriverReceiver
from twicesafe import ConfigurationError, Receiver
from twicesafe._engines.postgresql.settings import Settings
from twicesafe.testing import Place

LEVELS = ["read committed", "repeatable read", "serializable"]
WORKERS = 6


def set_level(url: str, level: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        name = url.rpartition("/")[2]
        connection.execute(
            f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = '{level}'"  # type: ignore[arg-type]
        )


@pytest.mark.parametrize("options", ["", "?generations=1h", "?prepare=false&wake=false"])
@pytest.mark.parametrize("level", LEVELS)
def test_workers_that_open_at_once_all_work(postgres_url: str, level: str, options: str):
    """Of every driver, on a database without tables, and all on the same keys."""
    set_level(postgres_url, level)
    errors: list[BaseException] = []
    values: set[tuple[str, Any]] = set()
    start = threading.Barrier(WORKERS)

    def work(number: int) -> None:
        try:
            start.wait()
            with DriverReceiver(KINDS[number % len(KINDS)], postgres_url + options) as client:
                for key in range(5):
                    values.add((f"k{key}", client.process(f"k{key}", str, number).value))
                client.process_many([f"m{key}" for key in range(20)], str, key=str)
                client.do("sweep")
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(values) == 5  # all workers got the same answers


class _Serializable(Postgres):
    def _settings(self, place: Place) -> Settings:
        plain = super()._settings(place)
        option = "-c%20default_transaction_isolation%3Dserializable"
        return Settings.of(f"{plain.dsn}?table={self._table(place)}&pool=20&options={option}")


@pytest.mark.usefixtures("postgres")
class TestSerializable(_Serializable, Isolated):
    """The rules in which requests meet, on sessions that would be serializable by default."""


# --- poolers -----------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["transaction", "statement"])
def pooler(request: pytest.FixtureRequest, postgres: Any) -> Iterator[PgBouncer]:
    try:
        server = PgBouncer(postgres, mode=request.param)
        server.start()
    except NoServerError as reason:
        pytest.skip(f"pgbouncer: {reason}")
    yield server
    server.remove()


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_pooler_cannot_give_is_refused_at_open(
    pooler: PgBouncer, postgres_url: str, kind: str
):
    """By statement: no transactions. By transaction: sessions that are not ours to set up."""
    with Receiver.open(postgres_url):
        pass  # the tables are there: opening it does not migrate
    if pooler.mode == "transaction":
        set_level(postgres_url, "serializable")
        told = "default_transaction_isolation"
    else:
        told = "pools by statement"
    url = pooler.url_of(postgres_url.rpartition("/")[2])
    with (
        pytest.raises(ConfigurationError, match=told),
        DriverReceiver(kind, f"{url}?prepare=false&wake=false") as client,
    ):
        client.process("k", str, 1)
