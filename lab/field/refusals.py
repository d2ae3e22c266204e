"""Refused payloads: a store that says no to one result, and one result that never gets through.

    refused    by the engine's own limit: max_allowed_packet, proto-max-bulk-len, a CHECK constraint, a
               trigger, the size of an item or of a request
    cut        by a proxy that ends every connection on which a request is large, again and again

Everything else gets through, renewals too. The handler of the large result has run, so its key must end:
soon, once, and without taking its neighbours along.
"""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, Final

import psycopg

from tests.servers import shared
from twicesafe import NotStorableError, Policy, ResultUnavailableError

from .drivers import DRIVERS, DriverReceiver, through
from .proxy import Proxy
from .trial import KEYED, SERVERS, Trial, trial
from .zombies import fresh_url

__all__ = ["refused_payloads"]

HEAVY: Final = {"mongodb": 16_500_000}
"""Characters of the large result, where 1,700,000 are not too many: MongoDB refuses from 16 MB on."""
LIMIT: Final = 1 << 20
POLICY: Final = Policy(max_result_bytes=1 << 24, lease=30, wait=60)
SOON: Final = 60.0
"""Seconds; an hour (`max_lease`) is what a result that never gets through took once."""


@trial("refused payloads", "C5", "keys", ("sqlite", *SERVERS, *KEYED))
def refused_payloads(t: Trial) -> None:
    """A store accepts everything except one large result. Is its key soon recorded as done without the
    result, with one effect however often it is delivered? Do the other items of its batch keep their results?"""
    # On a connection of etcd, acknowledgements come while a request is sent: the proxy cannot tell its size.
    ways = (_refusing,) if t.engine in ("sqlite", "etcd") else (_refusing, _cutting)
    heavy = "h" * HEAVY.get(t.engine, 1_700_000)
    for way in ways:
        for driver in DRIVERS[t.engine]:
            with way(t.engine) as (url, say_no), DriverReceiver(driver, url, POLICY) as client:
                runs: Counter[str] = Counter()

                def handle(key: str, runs: Counter[str] = runs) -> str:
                    runs[key] += 1
                    return heavy if "heavy" in key else key

                client.process("light", handle, "light")  # the tables are there now
                say_no()
                for number in range(t.size(2, 25)):
                    _alone(t, client, handle, f"heavy-{number}")
                    _in_company(t, client, handle, number)
                t.tried += len(runs)
                again = [key for key, count in runs.items() if count > 1]
                t.expect(not again, f"{driver}, {way.__name__}: ran again: {again[:5]}")


def _alone(t: Trial, client: DriverReceiver, handle: Callable[[str], str], key: str) -> None:
    began = time.monotonic()
    answers = [type(_answer(client, handle, key)) for _ in range(3)]
    t.most("longest until a key ended (s)", time.monotonic() - began)
    t.expect(time.monotonic() - began < SOON, f"{key} took {time.monotonic() - began:.0f} s")
    expected = [NotStorableError, ResultUnavailableError, ResultUnavailableError]
    t.expect(answers == expected, f"{key}: {answers}")
    t.count("kept without a result")


def _answer(client: DriverReceiver, handle: Callable[[str], str], key: str) -> Any:
    try:
        return client.process(key, handle, key).value
    except Exception as error:
        return error


def _in_company(
    t: Trial, client: DriverReceiver, handle: Callable[[str], str], number: int
) -> None:
    keys = [f"{number}-{name}" for name in ("a", "b", "heavy", "c")]
    for wanted in (NotStorableError, ResultUnavailableError):
        answers = client.process_many(keys, handle)
        light = [answer.value for answer in answers if hasattr(answer, "value")]
        t.expect(light == [keys[0], keys[1], keys[3]], f"a batch kept {str(light)[:100]}")
        found = getattr(answers[2], "error", answers[2])
        t.expect(isinstance(found, wanted), f"a batch: {found!r:.100}")
    t.count("neighbours that kept their results", 3)


@contextmanager
def _refusing(engine: str) -> Iterator[tuple[str, Callable[[], None]]]:
    """The engine's own limit."""
    with fresh_url(engine) as url:
        if engine in KEYED:
            yield url, lambda: None
        elif engine == "sqlite":
            yield url, lambda: _forbid_in_file(url.removeprefix("sqlite:///"))
        elif engine == "postgres":
            yield url, lambda: _constrain(url)
        elif engine == "valkey":
            client = shared(engine).client()
            try:
                yield url, lambda: client.config_set("proto-max-bulk-len", LIMIT)
            finally:
                client.config_set("proto-max-bulk-len", 512 << 20)
        else:
            server = shared(engine)
            server.execute(f"SET GLOBAL max_allowed_packet = {LIMIT}")
            try:
                yield url, lambda: None
            finally:
                server.execute(f"SET GLOBAL max_allowed_packet = {16 << 20}")


def _forbid_in_file(path: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "CREATE TRIGGER quota BEFORE INSERT ON twicesafe_results"
            f" WHEN length(NEW.body) > {LIMIT} BEGIN SELECT RAISE(ABORT, 'over the quota'); END"
        )


def _constrain(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"ALTER TABLE twicesafe_keys ADD CHECK (octet_length(result) < {LIMIT})")


@contextmanager
def _cutting(engine: str) -> Iterator[tuple[str, Callable[[], None]]]:
    """A limit between us and the server that hangs up."""
    server = shared(engine)
    with server.fresh() as url, Proxy(server.port) as proxy:

        def say_no() -> None:
            # A quarter: the first replies of a pipeline come while the rest is sent.
            proxy.largest = LIMIT // 4

        yield through(url, proxy.port), say_no
