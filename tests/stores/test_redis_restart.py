"""The server dies and comes back under load: no recorded result is lost, and all recover by themselves.

With ``appendfsync always`` a killed server keeps what it acknowledged; with ``everysec`` it keeps it
unless its disk is slow (the lab's trial "slow disk"), so there it is only stopped. What a *failover* can
lose is another matter: see docs/how-to/redis.md.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.stores.load import POLICY, RESTARTS, Tasks, Threads, never, survive
from twicesafe import Receiver, StoreUnavailableError


@pytest.mark.parametrize("kind", [Threads, Tasks])
@pytest.mark.parametrize("appendfsync", ["always", "everysec"])
def test_restarts_lose_no_recorded_result(
    kind: type[Any], appendfsync: str, own_server: Callable[..., Any]
) -> None:
    server = own_server("valkey", appendonly="yes", appendfsync=appendfsync)
    kills = appendfsync == "always"

    def restart(number: int) -> None:
        (server.kill if kills and number % 2 else server.stop)()
        server.start()

    restarts = [functools.partial(restart, number) for number in range(RESTARTS)]
    survive(kind(server.url), restarts, server.url)


def test_an_open_receiver_follows_a_failover(own_server: Callable[..., Any]) -> None:
    pair = own_server("valkey_sentinel", down_after="500")
    with Receiver.open(f"{pair.url}?wait_timeout=1", policy=POLICY) as receiver:
        with Receiver.open(f"{pair.url}?wait_replicas=1", policy=POLICY) as careful:
            careful.process("a", str, 1)
        pair.primary.kill()
        until = time.monotonic() + 60
        while True:
            try:
                assert receiver.process("b", str, 2).value == "2"
                break
            except StoreUnavailableError:
                assert time.monotonic() < until
        assert receiver.process("a", never).value == "1"
