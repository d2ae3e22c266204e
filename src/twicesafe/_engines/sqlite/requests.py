"""How a SQLite store performs requests.

A request is answered by a read, written alone in one statement, or written with others in one
transaction. A read never waits for a writer.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from time import monotonic
from typing import Any, Final

from ..._core import lifecycle
from ..._core.durable.run_requests import RUN_OPS, WITHOUT_RUNS, RecordStep
from ..._core.protocol import Ack, Claimed, ClaimRequest, Complete, Request, Verdict
from ...errors import SchemaVersionError, StoreError, StoreUnavailableError
from ..sql.commands import atomically
from ..sql.migrations import LAYOUT_CHANGES
from ..sql.programs import ACTS, READING, held_by_a_transaction
from .connections import SqliteConnections
from .programs import SqlitePrograms

__all__ = ["SqliteRequests"]

EMPTY_LOOKS: Final = 64
"""After this many looks in a row that found no record, claims are made without a look, until one of
them finds a record. Most keys are delivered once, and a look is one of three statements then."""

_ALWAYS_WRITTEN: Final = frozenset({Complete, RecordStep})
"""The two requests that a handler or a step ends with."""

_UNBATCHED: Final = READING | {"sweep"}
"""Requests that do not share a transaction with others."""

_WON: Final = Verdict.WON

_TO_WRITE: Final = object()
"""In place of an answer: this item needs a write."""


class SqliteRequests(SqliteConnections):
    """Performs the requests of `SqliteStore`, which has the programs."""

    programs: SqlitePrograms
    _empty_looks = 0

    def refresh(self) -> None:
        """Use the layout that the records have now."""
        raise NotImplementedError

    def recall(self, id: bytes) -> Claimed | None:  # noqa: A002
        writes = self._writes
        if self.programs.moves is not None:
            return lifecycle.ASK
        if self._empty_looks >= EMPTY_LOOKS:
            return None
        try:
            if writes.is_busy() or self._tap is not None:  # do not wait for the writer
                found = self._read(self.programs.recall(id))
            else:
                found = writes.alone(self._recall, id)
        except (sqlite3.Error, StoreError):
            return lifecycle.ASK
        self._empty_looks = self._empty_looks + 1 if found is None else 0
        return found

    def _recall(self, id_: bytes) -> Claimed | None:
        cursor = self._cursor or self._open_writer()
        try:
            rows = cursor.execute(
                self.programs.look_for_answer, (bytearray(self.programs.stored(id_)),)
            ).fetchall()
        except BaseException:
            self._close_writer()  # an open statement would keep its snapshot
            raise
        if not rows:
            return None  # a claim follows, and its answer is checked
        if monotonic() >= self._file.next_look:
            self._file.look()
        return self.programs.recalled(rows[0])

    def perform(self, request: Request, tries: int = LAYOUT_CHANGES) -> Any:
        """`tries`: how often it is repeated if the records were migrated to another layout meanwhile."""
        op = request.op
        try:
            programs = self.programs
            if op in RUN_OPS and not programs.runs.is_ready and not self._prepare_runs(op):
                return WITHOUT_RUNS[op]
            if programs.moves is not None:
                moved = programs.move_and_perform(request)
                return self._write(atomically(moved, SqlitePrograms.begin))
            if type(request) in _ALWAYS_WRITTEN:
                return self._writes.perform(request)
            if type(request) is ClaimRequest:
                if not request.looked and self._writes.is_busy():  # do not wait for the writer
                    answer = self._read(programs.peek(request))
                    if answer is not None:
                        return answer
                answer = self._writes.perform(request)
                if answer.verdict is not _WON:
                    self._empty_looks = 0  # a look would have found it, without waiting
                return answer
            if op in READING:
                return self._read(getattr(programs, op)(request))
            if op == "sweep":
                return self._write(programs.sweep(request))  # type: ignore[arg-type]
            return self._writes.perform(request)
        except SchemaVersionError:
            if not tries:
                raise
            self.refresh()
            return SqliteRequests.perform(self, request, tries - 1)

    def perform_many(self, requests: Sequence[Request]) -> list[Any]:
        answers = self._perform_many(requests)
        for index, answer in enumerate(answers):
            if isinstance(answer, SchemaVersionError):
                self.refresh()
                answers[index] = self._perform_or_error(requests[index])
        return answers

    def _prepare_runs(self, op: str) -> bool:
        """Create the tables of durable runs, before the transaction that needs them.

        False: they are missing, and this request does not need them.
        """
        return self._write(self.programs.runs.prepared(op))

    def _perform_many(self, requests: Sequence[Request]) -> list[Any]:
        is_ready = self.programs.runs.is_ready
        if not is_ready and any(request.op in RUN_OPS for request in requests):
            self._prepare_runs("record_step")
        if self.programs.moves is not None:
            return [self._perform_or_error(request) for request in requests]
        answers: list[Any] = [_TO_WRITE] * len(requests)
        try:
            claims = [index for index, ask in enumerate(requests) if type(ask) is ClaimRequest]
            if claims:
                asks: list[Any] = [requests[index] for index in claims]
                seen = self._read(self.programs.peek_all(asks))
                for index, answer in zip(claims, seen, strict=True):
                    answers[index] = _TO_WRITE if answer is None else answer
            for index, request in enumerate(requests):
                if request.op in _UNBATCHED:
                    answers[index] = self._answer_unbatched(request)
            writes = [index for index, answer in enumerate(answers) if answer is _TO_WRITE]
            if writes:
                batch = [requests[index] for index in writes]
                written = self._writes.alone(lambda: self._write_all(batch))
                for index, answer in zip(writes, written, strict=True):
                    answers[index] = answer
        except StoreError as error:
            answers = [error.again() if answer is _TO_WRITE else answer for answer in answers]
        return answers

    def _perform_or_error(self, request: Request) -> Any:
        try:
            return SqliteRequests.perform(self, request)
        except Exception as error:
            return error

    def _answer_unbatched(self, request: Request) -> Any:
        """The answer or the error of an item."""
        try:
            return self.perform(request)
        except StoreUnavailableError:
            raise
        except Exception as error:
            return error

    def _write_one(self, request: Any) -> Any:
        """A single claim also reads on the writing connection, because its page cache is warm."""
        try:
            if self._tap is not None:
                answer = self._run_on_writer(self.programs.look_or_shortcut(request))
            elif type(request) is ClaimRequest:
                answer = self._claim(request)
            else:
                answer = self._run_common_case(request)
            if answer is None:
                decision = self.programs.decide(request)
                answer = self._run_on_writer(atomically(decision, SqlitePrograms.begin))
        except sqlite3.Error as error:
            if _can_answer_locked(request) and _is_locked(error):
                return self._answer_locked(request)
            raise self._file.error_of(error) from error
        return answer

    def _claim(self, ask: ClaimRequest) -> Claimed | None:
        """Look first, unless the caller did, or looks find nothing. None: more must be written."""
        known = None
        if not ask.looked and self._empty_looks < EMPTY_LOOKS:
            known = self._recall(ask.key.id)
            self._empty_looks = self._empty_looks + 1 if known is None else 0
        if known is None:
            answer: Claimed | None = self._run_common_case(ask)
        else:
            answer = known if lifecycle.is_answer(known, ask) else None
        if answer is None:  # there is a record, and it is not as simple as that
            answer = self._run_on_writer(self.programs.peek(ask))
        return answer

    def _run_common_case(self, request: Any) -> Any:
        """One statement, without the cost of a program. None: this request needs more."""
        programs = self.programs
        common = programs.common_cases.get(type(request))
        if common is None:
            return None
        sql, values_of, answer_to = common
        values = values_of(request, programs.now())
        if values is None:
            return None
        cursor = self._cursor or self._open_writer()
        try:
            changed = cursor.execute(sql, values).rowcount
            if monotonic() >= self._file.next_look:
                self._file.look()
        except BaseException:
            self._close_writer()
            raise
        return answer_to(values) if changed else None

    def _answer_locked(self, ask: Any) -> Any:
        """The answer when another transaction, most likely an inbox's, locks the file for too long.

        If the file can be read, the store is up. The key may be one of that transaction's, so it
        counts as in progress.
        """
        if ask.op in ACTS:
            self._read(self.programs.load(ask.id))
            return Ack.LOCKED
        answer = self._read(self.programs.peek(ask))
        return held_by_a_transaction() if answer is None else answer

    def _write_all(self, requests: list[Any]) -> list[Any]:
        try:
            with self._file.errors():
                together = self.programs.together(requests)
                return self._run_on_writer(atomically(together, SqlitePrograms.begin))
        except StoreUnavailableError as error:
            if _is_locked(error.__cause__):
                return [self._answer_locked_or_error(request, error) for request in requests]
            return [error.again() for _ in requests]
        except Exception:
            # One request failed and rolled back all of them: run each alone for its own answer.
            return [self._write_one_or_error(request) for request in requests]

    def _answer_locked_or_error(self, request: Any, error: StoreUnavailableError) -> Any:
        try:
            return self._answer_locked(request) if _can_answer_locked(request) else error.again()
        except StoreUnavailableError as worse:
            return worse

    def _write_one_or_error(self, request: Any) -> Any:
        try:
            return self._write_one(request)
        except Exception as error:
            return error


def _is_locked(error: BaseException | None) -> bool:
    """Whether another connection kept its write lock for longer than the time-out."""
    return getattr(error, "sqlite_errorname", "") in ("SQLITE_BUSY", "SQLITE_BUSY_TIMEOUT")


def _can_answer_locked(request: Any) -> bool:
    """Claims and operators get an answer when the file is locked; an owner's requests are retried."""
    return isinstance(request, ClaimRequest) or request.op in ACTS
