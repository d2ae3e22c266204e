"""Alembic: the tables of records, and those of the outbox, as a revision of yours.

    from alembic import op
    from twicesafe.integrations.alembic import create_tables, drop_tables

    def upgrade():
        create_tables(op)

    def downgrade():
        drop_tables(op)

They are the tables of ``twicesafe migrate``, in the same words, also with ``--sql``; `create_outbox_tables`
and `drop_outbox_tables` are for the outbox. Open the inbox and the outbox
with ``?migrate=false`` then, so that only Alembic changes the schema. In `env.py`, pass
``include_name=leave_alone`` to `context.configure`: autogenerate would propose to drop what your
metadata does not know.
"""

from __future__ import annotations

from typing import Any

from .._engines.sql.migrations import first_steps
from ..errors import ConfigurationError
from ..stores._urls import identifier

__all__ = [
    "create_outbox_tables",
    "create_tables",
    "drop_outbox_tables",
    "drop_tables",
    "leave_alone",
]

NEWEST = 1
"""The schema that these tables have; a later one is a later revision of yours."""


def create_tables(op: Any, *, table: str = "twicesafe", schema: str = "") -> None:
    """Make the tables of records; `op` is Alembic's. Those that are there already are kept."""
    _create(op, _engine(op), _name(table, schema))


def drop_tables(op: Any, *, table: str = "twicesafe", schema: str = "") -> None:
    """Drop them, and with them all that was recorded: repeats of old messages run again."""
    engine, name = _engine(op), _name(table, schema)
    for part in ("records", "audit", "meta", *(("results",) if engine == "sqlite" else ())):
        op.execute(f"DROP TABLE {name}_{part}")


def create_outbox_tables(op: Any, *, table: str = "twicesafe", schema: str = "") -> None:
    """Make the tables of the outbox."""
    _create(op, f"{_engine(op)}_outbox", f"{_name(table, schema)}_outbox")


def drop_outbox_tables(op: Any, *, table: str = "twicesafe", schema: str = "") -> None:
    """Drop them, and with them every message that was not published yet."""
    engine, name = _engine(op), f"{_name(table, schema)}_outbox"
    gates = ("_gates",) if engine == "mysql" else ()
    for part in ("", "_slots", *gates, "_relays", "_troubles", "_parked", "_meta"):
        op.execute(f"DROP TABLE {name}{part}")


def _create(op: Any, engine: str, name: str) -> None:
    for statement in first_steps(engine, name, NEWEST, _present(op, engine, name)):
        op.execute(statement.replace(":", r"\:"))


def _present(op: Any, engine: str, name: str) -> int:
    """The schema that is there, perhaps by ``twicesafe migrate``; on paper: none."""
    if op.get_context().as_sql:
        return 0
    from sqlalchemy import inspect, text

    schema, _, bare = name.rpartition(".")
    bind = op.get_bind()
    if not inspect(bind).has_table(f"{bare}_meta", schema=schema or None):
        return 0
    number = "`schema`" if engine.startswith("mysql") else "schema"
    query = f"SELECT {number} FROM {name}_meta"  # noqa: S608 - checked by `identifier`
    return int(bind.execute(text(query)).scalar() or 0)


def leave_alone(name: str | None, type_: str, parents: Any) -> bool:
    """For `include_name`: False for tables that are ours."""
    return not (type_ == "table" and name is not None and name.startswith("twicesafe_"))


def _engine(op: Any) -> str:
    name: str = op.get_context().dialect.name
    if name not in ("sqlite", "postgresql", "mysql", "mariadb"):
        raise ConfigurationError(f"there are no tables for {name}: use SQLite, PostgreSQL or MySQL")
    return "mysql" if name == "mariadb" else name


def _name(table: str, schema: str) -> str:
    identifier(table)
    return f"{identifier(schema, 'schema')}.{table}" if schema else table
