"""What encryption costs: a call on Valkey with a key ring, against the same call without.

The floor of these rows is our own call without encryption. Results have 200 bytes, as in all rows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from twicesafe import AsyncReceiver, Policy, Receiver

from . import ours
from .case import FLOOR, Case, Target
from .drivers import DRIVERS, Driver
from .networked import NETWORK_LAP
from .workload import Contestant

TARGET = Target(1.10)


def encrypting() -> Iterator[Case]:
    for driver in DRIVERS:
        if driver.engine != "valkey":
            continue
        for what in ("first", "duplicate"):
            yield Case(
                f"encryption/{driver.id}/{what}",
                "Encryption: a call on Valkey with a key ring, of the call without",
                f"{driver.mode}, {what}",
                partial(called, driver, FLOOR, False),
                partial(called, driver, ours.NAME, True),
                mode=driver.mode,
                fresh=what == "first",
                target=TARGET,
                lap=NETWORK_LAP,
                engine=driver.engine,
            )


def called(driver: Driver, name: str, encrypted: bool, folder: Path) -> Contestant:
    policy, handler = Policy(), driver.handler
    if encrypted:
        from twicesafe.encryption import KeyRing

        policy = Policy(encryption=KeyRing({"a": os.urandom(32)}))
    if driver.is_async:
        receiver = AsyncReceiver.open(driver.ours(), policy=policy)

        async def call(key: str) -> Any:
            return await receiver.process(key, handler, key)

        return Contestant(name, call, receiver.close)
    blocking = Receiver.open(driver.ours(), policy=policy)

    def call_blocking(key: str) -> Any:
        return blocking.process(key, handler, key)

    return Contestant(name, call_blocking, blocking.close)
