"""Checks the server settings that the guarantees depend on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from ...stores._base import Finding, Program
from .routed_commands import PlainCommand
from .servers import info_fields
from .settings import Settings

__all__ = ["examine"]

EVICTING: Final = "evicting policies remove records that are still needed"
EVERY_SECOND: Final = "a crash while the disk is slow, or a power cut, can lose 1 to 2 s"


def examine(settings: Settings) -> Program[list[Finding]]:
    """The findings for every primary."""
    findings: list[Finding] = []
    node = 0
    while True:
        replies = yield [
            PlainCommand((b"INFO",), node=node),
            PlainCommand((b"CONFIG", b"GET", b"appendonly"), node=node),
            PlainCommand((b"CONFIG", b"GET", b"appendfsync"), node=node),
            PlainCommand((b"CONFIG", b"GET", b"min-replicas-to-write"), node=node),
        ]
        if replies[0] is None:
            return findings
        if isinstance(replies[0], Exception):
            raise replies[0]
        info = info_fields(replies[0])
        where = f" (node {node + 1})" if settings.kind == "cluster" else ""
        findings += [
            Finding(each.level, each.what + where, each.remedy)
            for each in _judge(info, *map(_value, replies[1:]), settings=settings)
        ]
        if settings.kind == "cluster" and node == 0:
            (state,) = yield [PlainCommand((b"CLUSTER", b"INFO"))]
            findings.append(_cluster(state))
        node += 1


def _judge(
    info: dict[str, str], append: str, fsync: str, least: str, *, settings: Settings
) -> Iterator[Finding]:
    name = "Valkey" if "valkey_version" in info else "Redis"
    version = info.get("valkey_version") or info.get("redis_version", "0")
    if int(info.get("redis_version", "0").split(".")[0]) < 7:
        yield Finding("refuse", f"{name} {version}", "Redis 7 or Valkey is needed")
    else:
        yield Finding("ok", f"{name} {version}")
    if info.get("role") == "master":
        yield Finding("ok", "a primary")
    else:
        yield Finding("refuse", "a replica: its data may be outdated", "connect to the primary")
    policy = info.get("maxmemory_policy", "")
    if policy == "noeviction" or info.get("maxmemory") == "0":
        yield Finding("ok", f"maxmemory-policy {policy}: nothing is evicted")
    else:
        yield Finding("refuse", f"maxmemory-policy {policy}: {EVICTING}", "set noeviction")
    yield _persistence(info, append, fsync)
    yield _replicas(int(info.get("connected_slaves", "0")), settings)
    if settings.kind == "sentinel" and least:
        yield _replaced(int(least), settings)


def _persistence(info: dict[str, str], append: str, fsync: str) -> Finding:
    if info.get("aof_enabled") != "1" and append != "yes":
        return Finding(
            "warn", "no append-only file: a crash of the server loses records", "set appendonly yes"
        )
    if info.get("aof_last_write_status", "ok") != "ok":
        return Finding("refuse", "the append-only file cannot be written", "check its disk")
    if fsync == "no":
        return Finding(
            "warn", "appendfsync no: a power cut loses records", "set always, or everysec"
        )
    if fsync == "always":
        return Finding("ok", "append-only file, appendfsync always")
    return Finding("ok", f"append-only file, appendfsync {fsync or 'unknown'}: {EVERY_SECOND}")


def _replicas(count: int, settings: Settings) -> Finding:
    if settings.wait_replicas > count:
        return Finding(
            "refuse",
            f"wait_replicas={settings.wait_replicas}, but {count} replicas are connected: no claim "
            "would count as done",
            "connect replicas, or lower wait_replicas",
        )
    if count and not settings.wait_replicas:
        return Finding(
            "warn",
            f"{count} replicas, wait_replicas=0: a failover can lose acknowledged claims and results",
            "set wait_replicas=1",
        )
    return Finding("ok", f"{count} replicas, wait_replicas={settings.wait_replicas}")


def _replaced(least: int, settings: Settings) -> Finding:
    """Whether a primary that was replaced, and does not know it, stops accepting writes."""
    if least or settings.wait_replicas:
        return Finding(
            "ok",
            f"min-replicas-to-write {least}, wait_replicas={settings.wait_replicas}: a primary that "
            "was replaced and does not know it cannot decide a claim",
        )
    return Finding(
        "warn",
        "min-replicas-to-write 0: a primary that was replaced and does not know it accepts writes",
        "set min-replicas-to-write 1 on primary and replicas, or wait_replicas=1",
    )


def _cluster(reply: Any) -> Finding:
    state = (
        "unknown" if isinstance(reply, Exception) else info_fields(reply).get("cluster_state", "?")
    )
    if state == "ok":
        return Finding("ok", "cluster_state ok")
    return Finding("refuse", f"cluster_state {state}", "check CLUSTER INFO on its nodes")


def _value(reply: Any) -> str:
    """The value in a reply to CONFIG GET; empty if a managed server refuses it."""
    return reply[1].decode() if isinstance(reply, list) and len(reply) == 2 else ""
