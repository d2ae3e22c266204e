"""Migrations: numbered SQL files per engine, applied in order, each in one transaction.

The version number is written in the same transaction as the change, so processes that start at the
same time migrate once, and a crash leaves a whole step or none. A schema that is newer than this
version of twicesafe is refused.
"""

from __future__ import annotations

import abc
from importlib import resources
from importlib.resources.abc import Traversable
from typing import ClassVar

from ...errors import SchemaVersionError
from ...stores._base import Program
from .commands import Change, Query, atomically

__all__ = ["Schema", "check", "files_of", "first_steps", "migrate"]


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

    def sql(self, version: int) -> str:
        """The statements that lead to this version, as an operator would run them."""
        bare = self.table.rpartition(".")[2]
        text = self.file(version).read_text()
        return text.replace("{t}", self.table).replace("{bare}", bare)

    def file(self, version: int) -> Traversable:
        return self._files[version - 1]

    def script(self) -> str:
        """All steps for an empty database, each with the statement that records its version."""
        steps, before = [], 0
        while before < self.newest:
            version = self.after(before)
            steps.append(
                f"-- {self.file(version).name}: schema {before} → {version}\n"
                f"{self.sql(version).rstrip()}\n"
                f"UPDATE {self.table}_meta SET {self.number} = {version:d};\n"
            )
            before = version
        return "\n".join(steps)

    def step(self) -> Program[str | None]:
        """One migration, in a transaction that keeps other processes out; None: nothing to do."""
        version = yield from self.version()
        if version >= self.newest:
            return None
        if not version and not self.repeatable and (yield from self.exists()):
            raise SchemaVersionError(
                f"the table {self.table}_meta exists with schema 0: a migration by hand was not finished; "
                "continue the script where it stopped, up to its UPDATE of "
                f"{self.table}_meta, or drop the tables {self.table}_… and run: twicesafe migrate"
            )
        after = self.after(version)
        for statement in _statements(self.sql(after)):
            yield Change(statement)
        yield Change(f"UPDATE {self.table}_meta SET {self.number} = {after:d}")
        return f"{self.table}: schema {version} → {after} ({self.file(after).name})"

    def after(self, version: int) -> int:
        """The version that one step leads to."""
        return version + 1


def migrate(schema: Schema, begin: str) -> Program[list[str]]:
    """Apply all missing steps; returns one line of text per step."""
    done: list[str] = []
    while (yield from schema.version()) < schema.newest:
        step = yield from atomically(schema.step(), begin)
        if step is not None:
            done.append(step)
    return done


def first_steps(engine: str, table: str, version: int, present: int = 0) -> list[str]:
    """The statements from the present version (0: an empty database) to this one, for tools that
    migrate by themselves. An outbox has its own engine and table: ``sqlite_outbox``, ``t_outbox``."""
    if present >= version:
        return []
    number = "`schema`" if engine.startswith("mysql") else "schema"
    bare = table.rpartition(".")[2]
    text = "".join(file.read_text() for file in files_of(engine)[present:version])
    steps = _statements(text.replace("{t}", table).replace("{bare}", bare))
    return [*steps, f"UPDATE {table}_meta SET {number} = {version:d}"]


def check(schema: Schema, version: int, where: str) -> None:
    if version == schema.newest:
        return
    remedy = "upgrade twicesafe" if version > schema.newest else "run: twicesafe migrate"
    raise SchemaVersionError(
        f"{where} has schema {version}, this version of twicesafe needs {schema.newest}; {remedy}"
    )


def _statements(text: str) -> list[str]:
    bare = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--"))
    return [statement.strip() for statement in bare.split(";") if statement.strip()]
