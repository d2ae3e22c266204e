"""Source mutants of transaction mode: a connection that commits by itself, taken for an open transaction."""

from __future__ import annotations

from .registry import break_source

_MATRIX = "tests/transactions/test_matrix.py::test_refused_or_atomic"
_STATE = "tests/transactions/test_state.py"


def _break(name: str, bug: str, file: str, old: str, new: str, *tests: str) -> None:
    """`tests` are ways of the matrix, or tests by their full name."""
    named = [test if "::" in test else f"{_MATRIX}[{test}]" for test in tests]
    break_source(name, bug=bug, file=f"_transactions/{file}", old=old, new=new, tests=named)


_break(
    "sqlite isolation_level None begins",
    "a sqlite3 connection without isolation_level is taken for one that begins by itself",
    "base.py",
    "return TransactionState.COMMITS if commits else TransactionState.BEGINS",
    "return TransactionState.BEGINS",
    "sqlite3/isolation_level-None",
)
_break(
    "psycopg autocommit begins",
    "the driver's autocommit is not looked at, also below SQLAlchemy",
    "base.py",
    "return TransactionState.COMMITS if connection.autocommit else TransactionState.BEGINS",
    "return TransactionState.BEGINS",
    "psycopg/autocommit",
)
_break(
    "a failed postgresql transaction is open",
    "a transaction that takes no more statements is not refused before anything is sent",
    "base.py",
    "if status == _PG_FAILED:",
    "if status < 0:",
    "psycopg/after-an-error",
)
_break(
    "a psycopg pipeline is believed",
    "statements that are pending in a pipeline count as an open transaction; the next sync commits them",
    "base.py",
    "if status == _PG_ACTIVE or (not answered and int(connection.pgconn.pipeline_status)):",
    "if status < 0:",
    "psycopg/autocommit,-pipeline,-a-statement-pending",
    "psycopg-async/autocommit,-pipeline,-COMMIT-pending",
)
_break(
    "a psycopg pipeline is refused",
    "a BEGIN that is pending in a pipeline is not waited for",
    "base.py",
    'yield Change("DO 0") if self.dialect == "mysql" else SYNC_PIPELINE',
    'yield Change("DO 0") if self.dialect == "mysql" else Query("SELECT 1")',
    "psycopg/autocommit,-pipeline,-BEGIN-pending",
)
_break(
    "asyncpg is always in a transaction",
    "an asyncpg connection without a transaction is taken",
    "base.py",
    "return TransactionState.OPEN if connection.is_in_transaction() else TransactionState.COMMITS",
    "return TransactionState.OPEN",
    "asyncpg/nothing-is-said",
)
_break(
    "mysql autocommit begins",
    "the server's autocommit flag is taken for its opposite",
    "base.py",
    "    if not flags & _IN_TRANSACTION:\n        return TransactionState.COMMITS",
    "    if not flags & _IN_TRANSACTION:\n        return TransactionState.BEGINS",
    "pymysql/autocommit",
)
_break(
    "a deadlock leaves mysql open",
    "the flags of an older answer are believed after an error that rolled all back",
    "base.py",
    "return TransactionState.OPEN if answered else TransactionState.STALE",
    "return TransactionState.OPEN",
    "pymysql/autocommit,-rolled-back-by-a-deadlock",
)
_break(
    "mysql log-in flags are believed",
    "what init_connect set after the log-in is not noticed",
    "base.py",
    "elif _ANSWERED.get(connection) != session:",
    "elif session is None:",
    "pymysql/init_connect",
)
_break(
    "a silent postgresql driver is open",
    "a driver that does not tell its state is taken for open",
    "base.py",
    'return TransactionState.OPEN if rows[0][0] == "yes" else TransactionState.COMMITS',
    "return TransactionState.OPEN",
    f"{_STATE}::test_a_driver_that_does_not_tell_is_asked[psycopg]",
)
_break(
    "a silent mysql driver is open",
    "a savepoint that is gone at once does not mean that there is no transaction",
    "base.py",
    "    except AtomicityBrokenError:\n        return TransactionState.COMMITS\n",
    "    except AtomicityBrokenError:\n        return TransactionState.OPEN\n",
    f"{_STATE}::test_a_driver_that_does_not_tell_is_asked[pymysql]",
)
_break(
    "nothing is refused",
    "a connection that commits by itself is used all the same",
    "base.py",
    "if state in (TransactionState.COMMITS, TransactionState.STALE):",
    "if state is None:",
    "sqlite3/isolation_level-None",
)
_break(
    "an engine that begins is refused",
    "SQLAlchemy's own BEGIN, with the first statement, is not waited for",
    "base.py",
    "if state is TransactionState.COMMITS and self.begins:",
    "if state is None and self.begins:",
    "sa-connection:sqlite/BEGIN-by-the-engine",
)
_break(
    "sqlalchemy autocommit with a BEGIN by hand",
    "a driver in autocommit mode, whose rollback may do nothing, counts as open after a BEGIN",
    "sqlalchemy.py",
    'connection.dbapi_connection, "autocommit", False) is True',
    'connection.dbapi_connection, "autocommit", False) is None',
    "sa-connection:postgresql+psycopg/AUTOCOMMIT,-BEGIN-by-hand",
)
_break(
    "sqlalchemy is not asked below",
    "the driver's state is not looked at: options of the engine and the driver go unnoticed",
    "sqlalchemy.py",
    "return state_of(self.dialect, driver, answered)",
    "return TransactionState.BEGINS",
    "sa-session:sqlite/engine-AUTOCOMMIT",
    "sa-connection:sqlite/isolation_level-None",
)
_break(
    "begin_nested on sqlite is believed",
    "a savepoint that is the transaction itself is taken: its release commits the record alone",
    "sqlalchemy.py",
    "return connection.in_nested_transaction() and connection.engine not in _MAY_NEST",
    "return False",
    "sa-session:sqlite/begin_nested-first",
)
_break(
    "async begin_nested on sqlite is believed",
    "the same for async connections and sessions",
    "sqlalchemy.py",
    "if self.is_doubtful() and not await self._connection.run_sync(prove_nesting):",
    "if False:",
    "sa-async:sqlite+aiosqlite/begin_nested-first",
)
_break(
    "any engine begins first",
    "the probe does not ask SQLite whether BEGIN was sent",
    "sqlalchemy.py",
    'return state_of("sqlite", driver) is TransactionState.OPEN',
    "return True",
    "sa-connection:sqlite/begin_nested-first",
)
_break(
    "a locked probe is no BEGIN",
    "an engine that sends BEGIN IMMEDIATE is refused while its caller writes",
    "sqlalchemy.py",
    'return "locked" in str(error)',
    'return "unlocked" in str(error)',
    "sa-connection:sqlite/BEGIN-IMMEDIATE-by-the-engine,-begin_nested-first",
)
_break(
    "the probe rolls its caller back",
    "a pool with one connection gives the probe the caller's own",
    "sqlalchemy.py",
    "if proxied.driver_connection is callers:",
    "if proxied is callers:",
    f"{_STATE}::test_a_pool_with_one_connection_is_left_alone",
)
_break(
    "django needs no block",
    "a BEGIN by hand is enough, though Django does not know that it must not commit",
    "django.py",
    "if connection.get_autocommit():",
    "if connection.get_autocommit() is None:",
    "django:sqlite3/BEGIN-by-hand",
)
_break(
    "django's failed block is taken",
    "a block that Django will roll back gets a record",
    "django.py",
    "elif connection.needs_rollback:",
    "elif connection.needs_rollback is None:",
    "django:sqlite3/after-an-error",
)
_break(
    "django is believed about its block",
    "the database is not asked whether the block's transaction is still there",
    "django.py",
    "state = super().look(answered)",
    "state = TransactionState.OPEN",
    "django:sqlite3/COMMIT-by-hand",
)
_break(
    "django's savepoint without a BEGIN",
    "atomic() with AUTOCOMMIT off is taken on SQLite: its end commits the record alone",
    "django.py",
    "and self.driver().isolation_level is not None",
    "and self.driver() is None",
    "django:sqlite3/AUTOCOMMIT-off,-atomic-first",
)
break_source(
    "alembic makes what is there",
    bug="a revision fails on tables that twicesafe migrate has made",
    file="integrations/alembic.py",
    old="    if not _present(op, engine, name):\n",
    new="    if True:\n",
    tests=["tests/inbox/test_tables.py::test_a_revision_makes_the_same_tables[sqlite3]"],
)
break_source(
    "an outbox leaves a table behind",
    bug="dropping the tables of the outbox forgets the parked messages",
    file="integrations/alembic.py",
    old='"_troubles", "_parked", "_meta"',
    new='"_troubles", "_meta"',
    tests=["tests/inbox/test_tables.py::test_a_revision_makes_the_same_tables[sqlite3]"],
)
