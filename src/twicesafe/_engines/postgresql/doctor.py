"""What `doctor` checks on a PostgreSQL server: the settings that the guarantees depend on."""

from __future__ import annotations

from typing import Final

from ...stores._base import Finding, Program
from ..sql.commands import Query

__all__ = ["findings", "settings_program"]


_SETTINGS: Final = (
    "server_version",
    "fsync",
    "full_page_writes",
    "synchronous_commit",
    "transaction_read_only",
    "default_transaction_isolation",
)


def settings_program() -> Program[dict[str, str]]:
    wanted = ", ".join(f"current_setting('{name}')" for name in _SETTINGS)
    row = (yield Query(f"SELECT {wanted}, pg_is_in_recovery()::text"))[0]
    return dict(zip((*_SETTINGS, "in_recovery"), row, strict=True))


def findings(settings: dict[str, str], schema: int) -> list[Finding]:
    replica = settings["in_recovery"] == "true" or settings["transaction_read_only"] == "on"
    may_lose_commits = settings["synchronous_commit"] in ("off", "local")
    return [
        Finding("refuse", "this server is a replica or read-only", "connect to the primary")
        if replica
        else Finding("ok", "a primary that accepts writes"),
        Finding("refuse", "fsync is off: a crash of the server loses records", "set fsync = on")
        if settings["fsync"] == "off"
        else Finding("ok", "fsync is on"),
        Finding(
            "warn",
            f"synchronous_commit={settings['synchronous_commit']}: the last commits can be lost",
            "set synchronous_commit = on, and a synchronous standby for failover",
        )
        if may_lose_commits
        else Finding("ok", f"synchronous_commit={settings['synchronous_commit']}"),
        Finding("ok", f"PostgreSQL {settings['server_version']}, schema {schema}"),
    ]
