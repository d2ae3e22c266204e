"""The collection: its index, made by `open` or ``twicesafe migrate``; the server's time; and the doctor."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC
from typing import Any, Final

from ...errors import StoreError, StoreUnavailableError
from ...stores._base import Finding, Program
from ..versioned.lease_watch import GivenClock, ServiceClock
from .documents import DriverCall
from .settings import Settings

__all__ = ["HELLO", "ask_time", "examine", "is_replicated", "migrate", "prepare"]

HELLO: Final = 30_000
"""Milliseconds after which the server is asked for its time again: a worker's steady clock may drift."""
OLDEST: Final = (4, 4)


def ask_time(clock: ServiceClock | GivenClock) -> Program[dict[str, Any]]:
    """Ask the primary for its time; returns its reply."""
    sent = clock.steady()
    hello = yield DriverCall("command", ("hello",), on="admin")
    told = hello.get("localTime")
    if told is not None:
        ms = round(told.replace(tzinfo=UTC).timestamp() * 1000)
        clock.observed(ms, ms + 1, sent)
    return hello  # type: ignore[no-any-return]


def is_replicated(hello: dict[str, Any]) -> bool:
    """A member of a replica set, or a router of a sharded cluster."""
    return "setName" in hello or hello.get("msg") == "isdbgrid"


def prepare(settings: Settings) -> Program[list[str]]:
    """What opening a store does."""
    return (yield from migrate(settings)) if settings.migrate else []


def migrate(settings: Settings) -> Program[list[str]]:
    if _ttl_index((yield from _indexes())) is not None:
        return []
    try:
        yield DriverCall("create_index", ("ttl",), {"name": "ttl", "expireAfterSeconds": 0})
    except StoreUnavailableError:
        raise
    except StoreError as error:
        return [f"no time to live: {error}"]
    return [f"created the index ttl of {settings.collection}: MongoDB deletes expired records"]


def _indexes() -> Program[list[dict[str, Any]]]:
    return (yield DriverCall("list_indexes"))  # type: ignore[no-any-return]


def _ttl_index(indexes: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The index on ``ttl``, with any settings."""
    return next((each for each in indexes if list(each["key"]) == ["ttl"]), None)


# --- the doctor ------------------------------------------------------------------------------


def examine(settings: Settings) -> Program[list[Finding]]:
    hello = yield DriverCall("command", ("hello",), on="admin")
    build = yield DriverCall("command", ("buildInfo",), on="admin")
    indexes = yield from _indexes()
    return [*_judge_server(build), *_judge_members(hello), _judge_ttl(indexes)]


def _judge_server(build: dict[str, Any]) -> Iterator[Finding]:
    version = str(build.get("version", ""))
    ferret = str(build.get("ferretdbVersion", ""))
    if ferret.startswith("v1."):
        yield Finding(
            "refuse",
            f"FerretDB {ferret} reads and writes a document in two steps: two workers can win a claim of "
            "one key",
            "use MongoDB",
        )
    elif ferret:
        yield Finding("warn", f"FerretDB {ferret} was not tried", "use MongoDB")
    elif tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < OLDEST:
        yield Finding("refuse", f"MongoDB {version}", "MongoDB 4.4 or newer is needed")
    else:
        yield Finding("ok", f"MongoDB {version}")


def _judge_members(hello: dict[str, Any]) -> Iterator[Finding]:
    if hello.get("msg") == "isdbgrid":
        yield Finding("ok", "a sharded cluster: every write waits for a majority of its shard")
        return
    if "setName" not in hello:
        yield Finding(
            "warn",
            "one server: when it is down, nothing runs; when its disk is lost, so are all records",
            "use a replica set of 3 members",
        )
        return
    members = len(hello.get("hosts", ())) + len(hello.get("passives", ()))
    if hello.get("arbiters"):
        yield Finding(
            "warn",
            f"{members} members with data and an arbiter: when one of them is down, no majority can "
            "acknowledge a write, and nothing runs",
            "replace the arbiter by a member with data",
        )
    elif members < 3:
        yield Finding(
            "warn",
            f"a replica set of {members}: when a member is down, nothing runs",
            "use 3 members",
        )
    else:
        yield Finding("ok", f"a replica set of {members}: every write waits for a majority")


def _judge_ttl(indexes: list[dict[str, Any]]) -> Finding:
    index = _ttl_index(indexes)
    if index is None:
        return Finding(
            "warn", "no index ttl: expired records stay until a sweep", "run twicesafe migrate"
        )
    if "expireAfterSeconds" not in index:
        return Finding(
            "warn",
            "the index ttl has no expireAfterSeconds: expired records stay until a sweep",
            "drop it, then run twicesafe migrate",
        )
    return Finding("ok", "MongoDB deletes expired records (index ttl)")
