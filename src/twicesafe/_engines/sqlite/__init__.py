"""SQLite: the embedded default. One file on a local disk, shared by the processes of one machine.

Durability is WAL with ``synchronous=FULL``: what was answered survives a power cut. With NORMAL
the last commits may be lost in a power cut (never in a crash of the process).

A duplicate reads on a connection of its own and never waits for a writer. All writes of a process
go through one lane: the calls that gather while one is being written are written together, in
one transaction, with one fsync. No reader ever becomes a writer, so SQLITE_BUSY can only mean
another process's write, for which SQLite itself waits (``timeout``). What lasts longer is an outage.

    sqlite:///keys.db            beside the working directory
    sqlite:////var/lib/keys.db   an absolute path
    ?synchronous=normal&timeout=10&table=twicesafe&migrate=false

    programs   what is asked of SQLite, as data: the common cases in one statement each
    settings   the URL and its file: how a connection is made, its errors in our words
    storing    the stores: a write lane and readers for threads, one worker for event loops
    inside     the record in the caller's transaction
    outbox     messages in the caller's transaction
"""

from .store import AsyncSqliteStore, SqliteStore

__all__ = ["AsyncSqliteStore", "SqliteStore"]
