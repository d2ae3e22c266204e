"""What `doctor` checks on a MariaDB or MySQL server: the settings that the guarantees depend on."""

from __future__ import annotations

from typing import Final

from ...stores._base import Finding, Program
from ..sql.commands import Query

__all__ = ["findings", "variables"]


_VARIABLES: Final = (
    "version",
    "read_only",
    "innodb_flush_log_at_trx_commit",
    "log_bin",
    "sync_binlog",
    "binlog_format",
    "max_allowed_packet",
    "innodb_autoinc_lock_mode",
)


def variables(records: str) -> Program[dict[str, str]]:
    names = ", ".join(f"'{name}'" for name in _VARIABLES)
    found = dict((yield Query(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})")))
    isolation = (
        "SHOW SESSION VARIABLES WHERE Variable_name IN ('tx_isolation', 'transaction_isolation')"
    )
    found["isolation"] = (yield Query(isolation))[0][1]
    rows = yield Query(
        "SELECT engine FROM information_schema.tables"
        " WHERE table_schema = DATABASE() AND table_name = %s",
        (records,),
    )
    found["engine"] = rows[0][0] if rows else "none"
    return found


def findings(settings: dict[str, str], schema: int) -> list[Finding]:
    engine, flush = settings["engine"], settings["innodb_flush_log_at_trx_commit"]
    binlog = settings["log_bin"] == "ON"
    packet = int(settings["max_allowed_packet"])
    found = [
        Finding("ok", "a primary that accepts writes")
        if settings["read_only"] in ("OFF", "0")
        else Finding("refuse", "this server is read-only", "connect to the primary"),
        Finding("ok", "tables are InnoDB")
        if engine == "InnoDB"
        else Finding(
            "refuse",
            f"the records are in {engine}, which has no transactions",
            "ALTER TABLE … ENGINE=InnoDB",
        ),
        Finding("ok", "innodb_flush_log_at_trx_commit=1")
        if flush == "1"
        else Finding(
            "refuse" if flush == "0" else "warn",
            f"innodb_flush_log_at_trx_commit={flush}: a crash can lose the last second of records",
            "SET GLOBAL innodb_flush_log_at_trx_commit = 1",
        ),
        Finding("ok", "sessions are READ COMMITTED")
        if settings["isolation"] == "READ-COMMITTED"
        else Finding(
            "refuse",
            f"sessions are {settings['isolation']}, although twicesafe sets READ COMMITTED: something resets them",
        ),
    ]
    if binlog and settings["sync_binlog"] != "1":
        found.append(
            Finding(
                "warn",
                f"sync_binlog={settings['sync_binlog']}: after a crash, replicas can miss commits of this server",
                "SET GLOBAL sync_binlog = 1",
            )
        )
    if binlog and settings["binlog_format"] == "STATEMENT":
        found.append(
            Finding(
                "refuse",
                "binlog_format=STATEMENT cannot be used with READ COMMITTED",
                "set binlog_format to ROW or MIXED",
            )
        )
    if packet < 1 << 20:
        found.append(
            Finding("warn", f"max_allowed_packet={packet}: results near this size cannot be stored")
        )
    if "MariaDB" not in settings["version"] and settings["innodb_autoinc_lock_mode"] != "2":
        found.append(
            Finding(
                "warn",
                "innodb_autoinc_lock_mode is not 2: claims of new keys wait for each other",
                "set innodb_autoinc_lock_mode = 2, the default of MySQL 8",
            )
        )
    found.append(Finding("ok", f"{settings['version']}, schema {schema}"))
    return found
