"""Durable runs on MariaDB and MySQL: a step is one statement, a start is one transaction.

On MariaDB the start of a new run is two statements in that transaction. A step is inserted by a
statement that reads its record under a shared lock, so a takeover waits for it and finds the step.
Sessions read what is committed when a statement begins, so a start reads the steps after its claim
has locked the record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ..._core.durable.run_requests import RecordStep, StartRun
from ..._core.protocol import Claimed, ClaimRequest
from ...stores._base import Program
from ..sql.commands import Change
from ..sql.run_programs import RunPrograms
from ..sql.step_rows import ID_BYTES, step_values
from .schema import MysqlSchema

if TYPE_CHECKING:
    from .programs import MysqlPrograms

__all__ = ["MysqlRuns"]

INSERTED: Final = 1
"""What the server counts for an upsert that found no row."""

_TIMES: Final = slice(8, 11)
"""The places of a step's times among its values: the server writes them."""


class MysqlRuns(RunPrograms):
    _records: MysqlPrograms

    def __init__(self, records: MysqlPrograms, schema: MysqlSchema) -> None:
        super().__init__(records, schema)
        now, mark = records.now, records.mark
        # A step that is there already is not changed, and the statement counts no row.
        once = f" LOCK IN SHARE MODE ON DUPLICATE KEY UPDATE name = {self.steps}.name"
        self._insert_step = mark(self.fenced_insert(now, "0", once))
        self._insert_wait = mark(self.fenced_insert(now, f"{now} + ?", once))

    def _started(self, ask: StartRun, answer: Claimed) -> Program[Claimed]:
        """A new run on MariaDB, whose claim returned the time: without a row it has no steps to read."""
        if answer.now and (yield from self._keep(ask, answer.now + ask.lease)) == INSERTED:
            answer.steps = []
            return answer
        return (yield from super()._started(ask, answer))

    def _claimed(self, ask: ClaimRequest) -> Program[Any]:
        """By the statement that inserts a new record, if it is one; under a lock if it is another case."""
        answer = yield from self._records.claim_one(ask, timed=True)
        if isinstance(answer, Exception):
            raise answer
        return (yield from super()._claimed(ask)) if answer is None else answer

    def lone_step(self, ask: RecordStep) -> Change:
        """Record a step in one statement. It changes no row if the step is there, or its owner is not."""
        values = list(step_values(ask.id[:ID_BYTES], ask, 0, 0, 0))
        values[_TIMES] = [ask.delay] if ask.delay else []
        of_record = self._records.stored(ask.id), ask.owner, ask.fence
        sql = self._insert_wait if ask.delay else self._insert_step
        return Change(sql, (*values, *of_record))
