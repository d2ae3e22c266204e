"""Alembic and Django make the tables that ``twicesafe migrate`` makes: no more, no less, no other."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy
from alembic.migration import MigrationContext
from alembic.operations import Operations

from tests.inbox.conftest import Shop
from twicesafe import ConfigurationError, Inbox, Outbox, SchemaVersionError
from twicesafe._engines.sql.migrations import files_of, first_steps
from twicesafe.integrations.alembic import (
    create_outbox_tables,
    create_tables,
    drop_outbox_tables,
    drop_tables,
    leave_alone,
)
from twicesafe.stores._urls import outbox_script_of, script_of

DRIVERS = {
    "sqlite3": "sqlite",
    "psycopg": "postgresql+psycopg",
    "pymysql": "mysql+pymysql",
}
URLS = {"sqlite": "sqlite:///a.db", "postgresql": "postgresql://a/a", "mysql": "mysql://a/a"}


def described(connection: Any) -> dict[str, Any]:
    """Columns, keys and indexes of our tables, as the database tells them."""
    look = sqlalchemy.inspect(connection)
    ours = [name for name in look.get_table_names() if name.startswith("other_")]
    return {
        name: (
            [(c["name"], str(c["type"]), c["nullable"]) for c in look.get_columns(name)],
            look.get_pk_constraint(name)["constrained_columns"],
            sorted(str(sorted(map(str, i["column_names"]))) for i in look.get_indexes(name)),
        )
        for name in ours
    }


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("sqlite3"),
        "psycopg",
        "pymysql",
    ],
)
def test_a_revision_makes_the_same_tables(shop_of: Callable[[str], Shop], kind: str):
    url = shop_of(kind).url
    engine = sqlalchemy.create_engine(url.replace(url.partition(":")[0], DRIVERS[kind], 1))
    try:
        with engine.begin() as connection:
            op = Operations(MigrationContext.configure(connection))
            create_tables(op, table="other")
            create_outbox_tables(op, table="other")
        with engine.connect() as connection:
            by_alembic = described(connection)
        ours = f"{url}?table=other&migrate=false"
        with Inbox.open(ours), Outbox.open(ours):
            pass  # they know the schema
        with engine.begin() as connection:
            op = Operations(MigrationContext.configure(connection))
            drop_outbox_tables(op, table="other")
        with Inbox.open(ours), pytest.raises(SchemaVersionError):
            Outbox.open(ours)
        with engine.begin() as connection:
            drop_tables(Operations(MigrationContext.configure(connection)), table="other")
            assert described(connection) == {}
        with pytest.raises(SchemaVersionError):
            Inbox.open(ours)
        Outbox.open(f"{url}?table=other").close()
        with engine.begin() as connection:  # what is there is kept
            op = Operations(MigrationContext.configure(connection))
            create_tables(op, table="other")
            create_outbox_tables(op, table="other")
        with engine.connect() as connection:
            assert described(connection) == by_alembic
    finally:
        engine.dispose()


@pytest.mark.parametrize("engine", URLS)
def test_offline_it_writes_what_migrate_writes(engine: str):
    paper = io.StringIO()
    context = MigrationContext.configure(
        dialect_name=engine, opts={"as_sql": True, "output_buffer": paper}
    )
    create_tables(Operations(context))
    create_outbox_tables(Operations(context))
    wanted = script_of(URLS[engine]) + outbox_script_of(URLS[engine])
    bare = "".join(line for line in wanted.splitlines() if not line.startswith("--"))
    assert "".join(paper.getvalue().split()) == "".join(bare.split())


def test_every_version_of_the_schema_has_its_migration():
    """A new SQL file needs a new Django migration, and `NEWEST` in the Alembic helper."""
    from twicesafe.integrations import alembic

    for engine in URLS:
        assert len(files_of(engine)) == alembic.NEWEST
        assert len(files_of(f"{engine}_outbox")) == alembic.NEWEST_OUTBOX
        assert len(files_of(f"{engine}_runs")) == alembic.NEWEST_RUNS
        assert first_steps(engine, "t", alembic.NEWEST)[-1].endswith(f"= {alembic.NEWEST}")


def test_autogenerate_leaves_our_tables_alone():
    assert not leave_alone("twicesafe_keys", "table", {})
    assert leave_alone("orders", "table", {})
    assert leave_alone("twicesafe_like", "column", {})


def test_a_database_without_tables_of_ours_is_refused():
    context = MigrationContext.configure(dialect_name="oracle", opts={"as_sql": True})
    with pytest.raises(ConfigurationError, match="oracle"):
        create_tables(Operations(context))
