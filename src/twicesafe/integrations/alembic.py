"""Alembic: the tables of records as a revision of yours.

    from alembic import op
    from twicesafe.integrations.alembic import create_tables, drop_tables

    def upgrade():
        create_tables(op)

    def downgrade():
        drop_tables(op)

They are the tables of ``twicesafe migrate``, in the same words, also with ``--sql``. Open the inbox
with ``?migrate=false`` then, so that only Alembic changes the schema. In `env.py`, pass
``include_name=leave_alone`` to `context.configure`: autogenerate would propose to drop what your
metadata does not know.
"""

from __future__ import annotations

from typing import Any

from ..errors import ConfigurationError
from ..stores.migrating import first_steps
from ..stores.urls import identifier

__all__ = ["create_tables", "drop_tables", "leave_alone"]

NEWEST = 1
"""The schema that these tables have; a later one is a later revision of yours."""


def create_tables(op: Any, *, table: str = "twicesafe", schema: str = "") -> None:
    """Make the tables; `op` is Alembic's."""
    for statement in first_steps(_engine(op), _name(table, schema), NEWEST):
        op.execute(statement.replace(":", r"\:"))


def drop_tables(op: Any, *, table: str = "twicesafe", schema: str = "") -> None:
    """Drop them, and with them all that was recorded: repeats of old messages run again."""
    engine, name = _engine(op), _name(table, schema)
    for part in ("records", "audit", "meta", *(("results",) if engine == "sqlite" else ())):
        op.execute(f"DROP TABLE {name}_{part}")


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
