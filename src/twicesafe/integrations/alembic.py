"""Alembic: the tables of records, and those of the outbox, as one of your revisions.

    from alembic import op
    from twicesafe.integrations.alembic import create_tables, drop_tables

    def upgrade():
        create_tables(op)

    def downgrade():
        drop_tables(op)

The statements are those of ``twicesafe migrate``, also in Alembic's offline mode (``--sql``).
`create_outbox_tables` and `drop_outbox_tables` do the same for the outbox. `update_tables`, in a later
revision, brings tables of an older version up to date. Open the inbox and the outbox with
``?migrate=false``, so that only Alembic changes the schema. In `env.py`, pass
``include_name=leave_alone`` to `context.configure`; otherwise autogenerate proposes to drop these
tables, because your metadata does not contain them.
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
    "update_tables",
]

NEWEST = 3
"""The schema version that these functions create. A newer one needs another revision."""
NEWEST_OUTBOX = NEWEST_RUNS = 1


def create_tables(op: Any, *, table: str = "twicesafe", schema: str = "") -> None:
    """Create the tables of records and of durable runs; `op` is Alembic's. Existing tables are kept."""
    engine, name = _engine(op), _name(table, schema)
    _create(op, engine, name, NEWEST)
    _create(op, f"{engine}_runs", f"{name}_runs", NEWEST_RUNS)


def update_tables(op: Any, *, table: str = "twicesafe", schema: str = "") -> None:
    """Bring tables that an older version made up to date, in this one transaction.

    Nodes of that version are refused afterwards. For very many records run ``twicesafe migrate`` first,
    which moves them in small batches: then nothing is left to do here. With ``--sql`` the tables are
    taken to be those of the first version.
    """
    engine, name = _engine(op), _name(table, schema)
    present = 1 if op.get_context().as_sql else _present(op, engine, name)
    if present:
        _execute(op, first_steps(engine, name, NEWEST, present))


def drop_tables(op: Any, *, table: str = "twicesafe", schema: str = "") -> None:
    """Drop the tables and all records in them: repeats of old messages will run again."""
    engine, name = _engine(op), _name(table, schema)
    older = ("records", "wide")
    runs = ("runs_steps", "runs", "runs_meta")
    results = ("results",) if engine == "sqlite" else ()
    for part in ("keys", *older, "audit", "meta", *results, *runs):
        op.execute(f"DROP TABLE IF EXISTS {name}_{part}")


def create_outbox_tables(op: Any, *, table: str = "twicesafe", schema: str = "") -> None:
    """Create the tables of the outbox."""
    _create(op, f"{_engine(op)}_outbox", f"{_name(table, schema)}_outbox", NEWEST_OUTBOX)


def drop_outbox_tables(op: Any, *, table: str = "twicesafe", schema: str = "") -> None:
    """Drop the tables, with all messages that were not published yet."""
    engine, name = _engine(op), f"{_name(table, schema)}_outbox"
    gates = ("_gates",) if engine == "mysql" else ()
    for part in ("", "_slots", *gates, "_relays", "_troubles", "_parked", "_meta"):
        op.execute(f"DROP TABLE {name}{part}")


def _create(op: Any, engine: str, name: str, newest: int) -> None:
    if not _present(op, engine, name):
        _execute(op, first_steps(engine, name, newest))


def _execute(op: Any, statements: list[str]) -> None:
    for statement in statements:
        op.execute(statement.replace(":", r"\:"))


def _present(op: Any, engine: str, name: str) -> int:
    """The schema version in the database; 0 in offline mode."""
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
    """For `include_name`: False for the tables of twicesafe."""
    return not (type_ == "table" and name is not None and name.startswith("twicesafe_"))


def _engine(op: Any) -> str:
    name: str = op.get_context().dialect.name
    if name not in ("sqlite", "postgresql", "mysql", "mariadb"):
        raise ConfigurationError(f"there are no tables for {name}: use SQLite, PostgreSQL or MySQL")
    return "mysql" if name == "mariadb" else name


def _name(table: str, schema: str) -> str:
    identifier(table)
    return f"{identifier(schema, 'schema')}.{table}" if schema else table
