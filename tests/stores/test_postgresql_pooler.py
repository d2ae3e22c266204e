"""Behind a pooler in transaction mode: ``prepare=false&wake=false``, and a clear word without it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.polling import until
from tests.servers import NoServerError
from tests.servers.pgbouncer import PgBouncer
from tests.stores.drivers import KINDS, DriverReceiver
from twicesafe import ConfigurationError, Key, Receiver
from twicesafe._core.durable.run_requests import FindDue, RecordStep, StartRun
from twicesafe._core.protocol import Ack

TOLD = "prepare=false&wake=false"
CALLERS = 6


@pytest.fixture(scope="module")
def pooler(postgres: Any) -> Iterator[PgBouncer]:
    try:
        server = PgBouncer(postgres)
        server.start()
    except NoServerError as reason:
        pytest.skip(f"pgbouncer: {reason}")
    yield server
    server.remove()


@pytest.fixture
def pooled_url(pooler: PgBouncer, postgres_url: str) -> str:
    return pooler.url_of(postgres_url.rpartition("/")[2])


def crowd(kind: str, url: str) -> tuple[list[Any], list[BaseException]]:
    """Six callers with their own connections, ten keys each, every key asked by two of them."""
    values: list[Any] = []
    errors: list[BaseException] = []
    start = threading.Barrier(CALLERS)

    def call(number: int) -> None:
        try:
            with DriverReceiver(kind, url) as client:
                start.wait()
                for key in range(10):
                    own = f"{number // 2}-{key}"
                    values.append((own, client.process(own, str, number).value))
                client.process_many([f"{number}-m{each}" for each in range(20)], str, key=str)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(CALLERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return values, errors


@pytest.mark.parametrize("kind", KINDS)
def test_everything_works_when_the_pooler_is_declared(
    kind: str, pooled_url: str, postgres_url: str
):
    values, errors = crowd(kind, f"{pooled_url}?{TOLD}")
    assert errors == []
    assert len(values) == CALLERS * 10
    assert len(set(values)) == CALLERS * 10 / 2  # both callers of a key got the same value
    with Receiver.open(postgres_url) as receiver:
        assert receiver.stats().total == CALLERS * 10 / 2 + CALLERS * 20


@pytest.mark.parametrize("kind", KINDS)
def test_durable_runs_work_too(kind: str, pooled_url: str):
    key, mine, other = Key("order-7"), b"a" * 16, b"b" * 16
    with DriverReceiver(kind, f"{pooled_url}?{TOLD}") as client:

        def perform(ask: Any) -> Any:
            return client._end(client.store.perform(ask))

        first = perform(StartRun(key, mine, 1, function="f", arguments=b"j[]"))
        assert first.steps == []
        for name in ("charge", "ship"):
            ask = RecordStep(key.id, mine, first.fence, name, "run", result=name.encode())
            assert perform(ask) is Ack.OK
        found: list[Any] = []

        def is_due() -> bool:
            found[:] = perform(FindDue(10, 60_000)).runs
            return bool(found)

        until(is_due)
        assert [run.key for run in found] == [key]
        taken = perform(StartRun(key, other, 60_000, function="f", arguments=b"j[]"))
        assert {step.name: step.result for step in taken.steps} == {
            "charge": b"charge",
            "ship": b"ship",
        }


@pytest.mark.parametrize("kind", KINDS)
def test_an_undeclared_pooler_is_refused(kind: str, pooled_url: str):
    """Its clients share prepared names: a statement could be another client's."""
    with (
        pytest.raises(
            ConfigurationError, match=r"connection pooler detected.*prepare=false&wake=false"
        ),
        DriverReceiver(kind, pooled_url) as client,
    ):
        client.process("k", str, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_transaction_pooler_is_refused_although_prepare_is_on(kind: str, pooled_url: str):
    """``prepare=true`` is for poolers that keep what a client prepared: this one does not."""
    with (
        pytest.raises(
            ConfigurationError, match=r"connection pooler detected.*prepare=false&wake=false"
        ),
        DriverReceiver(kind, f"{pooled_url}?prepare=true") as client,
    ):
        client.process("k", str, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_session_pooler_is_accepted_when_prepare_is_on(
    kind: str, postgres: Any, postgres_url: str
):
    try:
        server = PgBouncer(postgres, pool=20, mode="session")
        server.start()
    except NoServerError as reason:
        pytest.skip(f"pgbouncer: {reason}")
    try:
        url = server.url_of(postgres_url.rpartition("/")[2])
        with DriverReceiver(kind, f"{url}?prepare=true") as client:
            assert client.process("k", str, 1).value == "1"
            assert client.process("k", str, 1).replayed
    finally:
        server.remove()


def test_a_lost_prepared_statement_says_what_to_do(postgres_url: str):
    with Receiver.open(f"{postgres_url}?pool=1") as receiver:
        receiver.process("k", str, 1)
        (place,) = receiver.store._pool._idle  # type: ignore[attr-defined]
        place.connection.execute("DO $$ BEGIN EXECUTE 'DEALLOCATE ALL'; END $$")
        with pytest.raises(ConfigurationError, match="prepare=false&wake=false"):
            receiver.process("k", str, 1)
        assert receiver.process("k", str, 1).replayed  # on another connection
