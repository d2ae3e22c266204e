"""What a recorded step costs: a durable function of 20 steps, against the same by hand.

The floor is what a careful programmer writes in an afternoon: a claim, one fenced INSERT per step (on
Valkey a script that compares the owner and does HSETNX), and a completion. It reads no steps, waits for
no signal, undoes nothing and finds no abandoned run. Results have 200 bytes, as in all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from twicesafe import Receiver, Steps

from . import engines, ours
from .case import FLOOR, Case, Target
from .embedded import url_of
from .floors import LostError, SqliteFloor, encode
from .floors_mariadb import PyMySqlFloor
from .floors_postgresql import PERCENT, PsycopgFloor, one
from .floors_redis import RedisFloor
from .networked import NETWORK_LAP
from .workload import RESULT, Contestant

__all__ = ["STEPS", "durable"]

STEPS = 20
LONG = 1000
SECTION = f"Durable functions: a run of {STEPS} steps, of the same by hand"
LONG_SECTION = f"Durable functions: one run of {LONG:,} steps, of {LONG // STEPS} runs of {STEPS}"

SERVERS = {"postgresql": "PostgreSQL, psycopg", "mariadb": "MariaDB, PyMySQL", "valkey": "Valkey"}

TARGETS = {
    "sqlite-full": Target(1.15),
    "sqlite-normal": Target(1.15),
    "postgresql": Target(1.15),
    "mariadb": Target(1.15),
    "valkey": Target(1.15),
}


def durable() -> Iterator[Case]:
    for store, title in (("sqlite-full", "SQLite FULL"), ("sqlite-normal", "SQLite NORMAL")):
        yield Case(
            f"durable/{store}",
            SECTION,
            title,
            partial(_by_hand_on_sqlite, store),
            partial(_ours_on_sqlite, store),
            target=TARGETS[store],
            waits=store == "sqlite-full",
        )
    for engine, title in SERVERS.items():
        yield Case(
            f"durable/{engine}",
            SECTION,
            title,
            _BY_HAND[engine],
            partial(_ours_on_server, engine),
            target=TARGETS[engine],
            lap=NETWORK_LAP,
            engine=engine,
        )
    for store, title in (("sqlite-normal", "SQLite NORMAL"), *SERVERS.items()):
        is_server = store in SERVERS
        maker = _ours_on_server if is_server else _ours_on_sqlite
        yield Case(
            f"durable/long/{store}",
            LONG_SECTION,
            title,
            partial(maker, store, runs=LONG // STEPS),
            partial(maker, store, steps=LONG),
            target=Target(1.15),
            waits=is_server,
            share=0.25,
            quick=False,
            engine=store if is_server else "",
        )


def _ours_on_sqlite(store: str, folder: Path, **size: int) -> Contestant:
    folder = folder / "-".join(size)
    folder.mkdir(exist_ok=True)
    return _ours(url_of(store, folder), **size)


def _ours_on_server(engine: str, folder: Path, **size: int) -> Contestant:
    return _ours(engines.url(engine), **size)


def _ours(url: str, steps: int = STEPS, runs: int = 1) -> Contestant:
    receiver, many = Receiver.open(url), steps

    @receiver.durable(key="key", scope=("steps",), complete=False)
    def flow(steps: Steps, key: str) -> Any:
        for number in range(many):
            steps.run(f"step-{number}", _work)
        return RESULT

    def call(key: str) -> Any:
        for number in range(runs):
            flow(f"{key}-{number}")

    return Contestant(FLOOR if runs > 1 else ours.NAME, flow if runs == 1 else call, receiver.close)


def _work() -> Any:
    return RESULT


# --- by hand ---------------------------------------------------------------------------------


def _contestant(floor: Any, step: Callable[[str, bytes, int, str, bytes], bool]) -> Contestant:
    """A run around a floor; `step` returns whether the step was recorded."""

    def call(key: str) -> Any:
        owner, fence, payload = floor.claim(key)
        if payload is not None:
            return payload
        for number in range(STEPS):
            if not step(key, owner, fence, f"step-{number}", encode(_work())):
                raise LostError
        floor.complete(key, owner, fence, encode(RESULT))
        return RESULT

    return Contestant(FLOOR, call, getattr(floor, "close", bool))


def _by_hand_on_sqlite(store: str, folder: Path) -> Contestant:
    floor = SqliteFloor(folder / "floor.db", store.partition("-")[2])
    database = floor._db
    database.execute(
        "CREATE TABLE IF NOT EXISTS steps (key TEXT NOT NULL, name TEXT NOT NULL, result BLOB,"
        " PRIMARY KEY (key, name)) STRICT"
    )

    def step(key: str, owner: bytes, fence: int, name: str, payload: bytes) -> bool:
        with floor._lock:
            changed = database.execute(
                "INSERT INTO steps SELECT ?, ?, ? FROM keys WHERE key = ? AND owner = ? AND fence = ?"
                " AND state = 0 ON CONFLICT DO NOTHING",
                (key, name, payload, key, owner, fence),
            ).rowcount
        return changed > 0

    return _contestant(floor, step)


_STEP = """
WITH a AS MATERIALIZED ({asks})
INSERT INTO floor_steps (key, name, result)
SELECT a.key, a.name, a.result FROM a JOIN floor f ON f.key = a.key
WHERE f.owner = a.owner AND f.fence = a.fence AND f.state = 0 FOR SHARE OF f
ON CONFLICT DO NOTHING RETURNING key"""
_STEP_ASK = (
    ("key", "text"), ("name", "text"), ("result", "bytea"), ("owner", "bytea"), ("fence", "bigint"),
)  # fmt: skip


def _by_hand_on_postgresql(folder: Path) -> Contestant:
    floor = PsycopgFloor(engines.url("postgresql"))
    floor._ask(
        "CREATE TABLE IF NOT EXISTS floor_steps (key text, name text, result bytea,"
        " PRIMARY KEY (key, name))",
        (),
    )
    sql = one(_STEP, _STEP_ASK, PERCENT)

    def step(key: str, owner: bytes, fence: int, name: str, payload: bytes) -> bool:
        return bool(floor._ask(sql, (key, name, payload, owner, fence)))

    return _contestant(floor, step)


_STEP_SCRIPT = """
local text = redis.call('GET', KEYS[1])
if not text then return 0 end
local state, fence, til, owner = struct.unpack('<BI6I6c16', text)
if state ~= 0 or fence ~= tonumber(ARGV[2]) or owner ~= ARGV[1] then return 0 end
return redis.call('HSETNX', KEYS[2], ARGV[3], ARGV[4])
"""


def _by_hand_on_valkey(folder: Path) -> Contestant:
    floor = RedisFloor(engines.url("valkey"))
    client = floor._client
    script = client.script_load(_STEP_SCRIPT)

    def step(key: str, owner: bytes, fence: int, name: str, payload: bytes) -> bool:
        keys = f"floor:{key}", f"floor:{key}:steps"
        return bool(client.evalsha(script, 2, *keys, owner, str(fence), name, payload))

    return _contestant(floor, step)


_STEP_ON_MARIADB = (
    "INSERT INTO floor_steps (id, name, result) SELECT %s, %s, %s FROM floor WHERE id = %s AND owner = %s"
    " AND fence = %s AND state = 0 LOCK IN SHARE MODE ON DUPLICATE KEY UPDATE name = floor_steps.name"
)


def _by_hand_on_mariadb(folder: Path) -> Contestant:
    floor = PyMySqlFloor(engines.url("mariadb"))
    floor._ask(
        "CREATE TABLE IF NOT EXISTS floor_steps (id VARBINARY(64), name VARBINARY(200), result LONGBLOB,"
        " PRIMARY KEY (id, name)) ENGINE=InnoDB",
        (),
    )

    def step(key: str, owner: bytes, fence: int, name: str, payload: bytes) -> bool:
        id_ = key.encode()
        return bool(floor._ask(_STEP_ON_MARIADB, (id_, name, payload, id_, owner, fence))[0])

    return _contestant(floor, step)


_BY_HAND = {
    "postgresql": _by_hand_on_postgresql,
    "mariadb": _by_hand_on_mariadb,
    "valkey": _by_hand_on_valkey,
}
