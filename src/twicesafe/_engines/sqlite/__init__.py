"""SQLite: the embedded default. One file on a local disk, shared by the processes of one machine.

Durability is WAL with ``synchronous=FULL``: a committed answer survives a power cut. With NORMAL a
power cut may lose the last commits (a crash of the process never does).

A duplicate is answered by a read, on its own connection, and never waits for a writer. (After 64 new keys
in a row, claims are made without a read; then the first duplicate is answered by its claim.) All writes
of a process go through one connection: calls that arrive during a commit share the next transaction
and its fsync. No read transaction ever becomes a write transaction, so SQLITE_BUSY can only mean that
another connection writes. SQLite waits for it up to ``timeout``; after that it is an outage.

    sqlite:///keys.db            relative to the working directory
    sqlite:////var/lib/keys.db   an absolute path
    ?synchronous=normal&timeout=10&table=twicesafe&migrate=false

    settings         the URL: the path and the options
    store            the stores, blocking and async
    requests         which request goes to which connection
    connections      one writing connection, many readers, and what happens at a fork
    programs         the statements: the common cases in one statement each
    database_file    the file: how a connection is opened, whether it is still ours, what an error means
    doctor           checks the file
    in_transaction   the record in the caller's transaction
    outbox_programs  the outbox in the caller's database
"""

from .store import AsyncSqliteStore, SqliteStore

__all__ = ["AsyncSqliteStore", "SqliteStore"]
