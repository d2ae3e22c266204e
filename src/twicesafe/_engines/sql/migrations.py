"""Migrations: numbered SQL files per engine, applied in order, each in one transaction.

The version number is written in the same transaction as the change, so processes that start at the
same time migrate once, and a crash leaves a whole step or none. A schema that is newer than this
version of twicesafe is refused.

A step that older nodes cannot work beside is never taken by opening a store: only an operator's
`migrate` takes it (`Schema.opening_goal`).
"""

from __future__ import annotations

import abc
import re
from collections.abc import Callable
from contextlib import suppress
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any, ClassVar, Final

from ...errors import SchemaVersionError
from ...stores._base import Program, Progress
from .commands import Change, Query, atomically
from .layouts import Layout, layout_of

__all__ = [
    "LAYOUT_CHANGES",
    "RecordsSchema",
    "Schema",
    "check",
    "files_of",
    "first_steps",
    "migrate_records",
    "statements_of",
]


def files_of(engine: str) -> list[Traversable]:
    folder = resources.files(__package__) / "schema_files" / engine
    return sorted((f for f in folder.iterdir() if f.name.endswith(".sql")), key=lambda f: f.name)


class Schema(abc.ABC):
    """The schema of one engine under one table name."""

    number: ClassVar[str] = "schema"
    """The column that holds the version, as this engine writes it."""
    repeatable: ClassVar[bool] = False
    """A step that was interrupted may run again: it creates only what is missing."""

    def __init__(self, engine: str, table: str) -> None:
        self.table = table
        self._files = files_of(engine)
        self.newest = len(self._files)

    @abc.abstractmethod
    def exists(self) -> Program[bool]:
        """Whether any version of the schema is there."""

    def version(self) -> Program[int]:
        if not (yield from self.exists()):
            return 0
        return (yield Query(f"SELECT {self.number} FROM {self.table}_meta"))[0][0]  # type: ignore[no-any-return]

    def sql(self, version: int, before: int | None = None) -> str:
        """The statements that lead to this version, as an operator would run them."""
        bare = self.table.rpartition(".")[2]
        text = self.text(version - 1 if before is None else before, version)
        return text.replace("{t}", self.table).replace("{bare}", bare)

    def text(self, before: int, version: int) -> str:
        return self.file(version).read_text()

    def file(self, version: int) -> Traversable:
        return self._files[version - 1]

    def source(self, before: int, version: int) -> str:
        """Where the statements of a step are from, for people."""
        return self.file(version).name

    def script(self) -> str:
        """All steps for an empty database, each with the statement that records its version."""
        steps, before = [], 0
        while before < self.newest:
            version = self.after(before)
            steps.append(
                f"-- {self.source(before, version)}: schema {before} → {version}\n"
                f"{self.sql(version, before).rstrip()}\n"
                f"UPDATE {self.table}_meta SET {self.number} = {version:d};\n"
            )
            before = version
        return "\n".join(steps)

    def prepare(self, begin: str) -> Program[list[str]]:
        """What opening migrates; returns one line of text per step."""
        version = yield from self.version()
        if version >= self.opening_goal(version):
            return []
        return (yield from self.migrate(begin))

    def migrate(self, begin: str) -> Program[list[str]]:
        """Apply all missing steps; returns one line of text per step."""
        done: list[str] = []
        if (yield from self.version()) >= self.newest:
            return done
        while (step := (yield from atomically(self.step(), begin))) is not None:
            done.append(step)
        return done

    def step(self) -> Program[str | None]:
        """One migration, in a transaction that keeps other processes out; None: nothing to do."""
        version = yield from self.version()
        if self.is_done(version):
            return None
        if not version and not self.repeatable and (yield from self.exists()):
            raise SchemaVersionError(
                f"the table {self.table}_meta exists with schema 0: a migration by hand was not finished; "
                "continue the script where it stopped, up to its UPDATE of "
                f"{self.table}_meta, or drop the tables {self.table}_… and run: twicesafe migrate"
            )
        after = self.after(version)
        yield from self.apply(version, after)
        yield Change(f"UPDATE {self.table}_meta SET {self.number} = {after:d}")
        return f"{self.table}: schema {version} → {after} ({self.source(version, after)})"

    def is_done(self, version: int) -> bool:
        """Whether no step follows this version."""
        return version >= self.newest

    def apply(self, before: int, after: int) -> Program[None]:
        for statement in statements_of(self.sql(after, before)):
            if (yield from self.is_needed(statement)):
                yield Change(statement)

    def is_needed(self, statement: str) -> Program[bool]:
        """False: a step that was interrupted has run this statement before."""
        yield from ()
        return True

    def after(self, version: int) -> int:
        """The version that one step leads to."""
        return version + 1

    def opening_goal(self, version: int) -> int:
        """The version to which opening may migrate from this one."""
        return self.newest


class RecordsSchema(Schema):
    """The schema of the records. Its second step ends the work of older nodes."""

    def opening_goal(self, version: int) -> int:
        return version or self.newest

    def after(self, version: int) -> int:
        return version + 1 if version else self.newest

    def text(self, before: int, version: int) -> str:
        return super().text(before, version) if before else _from_nothing(self._files)

    def source(self, before: int, version: int) -> str:
        return super().source(before, version) if before else "new tables"

    def layout(self, where: str) -> Program[Layout]:
        """How the records are stored now. Raises if no version of twicesafe stores them like this."""
        return layout_of((yield from self.version()), where)


def _from_nothing(files: list[Traversable]) -> str:
    """All these files for an empty database, without the tables that only older versions have."""
    steps = statements_of("".join(file.read_text() for file in files))
    return "".join(f"{step};\n" for step in steps if not _OLDER.search(step))


_OLDER: Final = re.compile(r"\{t\}_(records|wide)\b")


BATCH: Final = 500
"""Records that one transaction moves. Their claims wait for it."""

LAYOUT_CHANGES: Final = 2
"""How often the layout of the records can change under a node that is open."""


def migrate_records(
    schema: RecordsSchema,
    moves: Callable[[], Any],
    run: Callable[[Callable[[], Program[Any]]], Any],
    begin: str,
    tell: Progress = None,
) -> list[str]:
    """Take all steps of the records' schema, and move the records in bounded batches.

    It can be killed at any point, and run by several processes at once: what is done is in the database.
    """
    done: list[str] = []
    while 0 < (version := run(schema.version)) < schema.newest:
        if version == schema.newest - 1 and (moved := _move_all(moves(), run, begin, tell)):
            done.append(f"{schema.table}: {moved} records moved")
        step = run(lambda: atomically(schema.step(), begin))
        if step is not None:
            done.append(step)
    return done


def _move_all(moves: Any, run: Callable[[Any], Any], begin: str, tell: Progress) -> int:
    moved = 0
    # On MariaDB a last step that was interrupted may have dropped the table.
    with suppress(SchemaVersionError):
        total = run(moves.left)
        while (count := run(lambda: atomically(moves.step(BATCH), begin))) > 0:
            moved += count
            if tell is not None:
                tell(moved, max(moved, total))
    return moved


def first_steps(engine: str, table: str, version: int, present: int = 0) -> list[str]:
    """The statements from the present version (0: an empty database) to this one, for tools that
    migrate by themselves. An outbox has its own engine and table: ``sqlite_outbox``, ``t_outbox``."""
    if present >= version:
        return []
    number = "`schema`" if engine.startswith("mysql") else "schema"
    bare = table.rpartition(".")[2]
    files = files_of(engine)
    if not present and version == len(files) > 1:
        text = _from_nothing(files)
    else:
        text = "".join(file.read_text() for file in files[present:version])
    steps = statements_of(text.replace("{t}", table).replace("{bare}", bare))
    return [*steps, f"UPDATE {table}_meta SET {number} = {version:d}"]


def check(schema: Schema, version: int, where: str) -> None:
    if version == schema.newest:
        return
    remedy = "upgrade twicesafe" if version > schema.newest else "run: twicesafe migrate"
    raise SchemaVersionError(
        f"{where} has schema {version}, this version of twicesafe needs {schema.newest}; {remedy}"
    )


def statements_of(text: str) -> list[str]:
    """The single statements of a file, without its comments."""
    bare = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--"))
    return [statement.strip() for statement in bare.split(";") if statement.strip()]
