"""Our tables in Django's migrations: missing ones are created, those of ``twicesafe migrate`` are kept."""

from __future__ import annotations

from typing import Any, Final

from ..._engines.sql.migrations import first_steps

__all__ = ["make", "unmake"]

_TABLES: Final = {
    "records": ("keys", "records", "wide", "audit", "meta", "results"),
    "outbox": (
        "outbox", "outbox_slots", "outbox_gates", "outbox_relays", "outbox_troubles",
        "outbox_parked", "outbox_meta",
    ),
}  # fmt: skip


def make(schema_editor: Any, what: str, version: int) -> None:
    """Bring these tables from any earlier version of their schema to this one."""
    vendor = schema_editor.connection.vendor
    engine, table = (
        (vendor, "twicesafe") if what == "records" else (f"{vendor}_outbox", "twicesafe_outbox")
    )
    if vendor == "postgresql":  # step by step, as `twicesafe migrate` does
        schema_editor.execute("SELECT pg_advisory_xact_lock(hashtext('twicesafe migration'))")
    for statement in first_steps(engine, table, version, _version(schema_editor, table)):
        schema_editor.execute(statement, params=None)


def unmake(schema_editor: Any, what: str) -> None:
    """Drop these tables and all records in them."""
    for table in _TABLES[what]:
        schema_editor.execute(f"DROP TABLE IF EXISTS twicesafe_{table}", params=None)


def _version(schema_editor: Any, table: str) -> int:
    connection = schema_editor.connection
    if schema_editor.collect_sql:
        return 0
    with connection.cursor() as cursor:
        if f"{table}_meta" not in connection.introspection.table_names(cursor):
            return 0
        number = connection.ops.quote_name("schema")
        cursor.execute(f"SELECT {number} FROM {table}_meta")  # noqa: S608 - names of ours
        found = cursor.fetchone()  # none: a migration died in it, on MySQL
    return int(found[0]) if found else 0
