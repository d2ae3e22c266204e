"""The requests of operators, as flows that `Operators`, `Inspection` and their async versions run. No I/O."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

from .. import events
from .._core import operations
from .._core.archiving import Archiving
from .._core.commands import Flow
from .._core.durable import run_operations
from .._core.durable.run_requests import FOREVER, Restart
from .._core.durable.run_state import checked_name
from .._core.encrypting import encrypted, encrypted_step
from .._core.operator_acts import audited_act
from .._core.protocol import Discard, Forget, Release, Resolve
from .._core.searching import Conditions, Question, conditions, named_ids, together
from .._core.unkept_results import too_large
from .._values.clocks import wall_clock
from .._values.keys import Key
from .._values.quantities import counted
from .._values.records import Record, ReencryptReport, Row, State, Stats
from .._values.settings import Duration, expect, seconds
from .._values.steps import SIGNAL
from ..errors import TwicesafeError
from ..stores._base import Finding
from ._base import ReceiverBase

__all__ = ["OperatorFlows", "about_secret", "sampled", "unread", "unswept", "warn_of_unreadable"]


_log = logging.getLogger("twicesafe")


class OperatorFlows(ReceiverBase):
    """Every operator's request as a flow, and what this process must do after it."""

    def _operate(self, key: Key, ask: Release | Resolve | Forget) -> Flow[None]:
        operate = operations.operate_run if self._keeps_steps else operations.operate
        try:
            yield from operate(key, ask)
        except TwicesafeError:
            # The store may have done it: perhaps only the answer was lost.
            self._runtime.uncache(key.id)
            raise
        self._runtime.uncache(key.id)  # after the store's change, so nothing refills it

    def _erase(self, job: Archiving, rows: list[Row]) -> Flow[None]:
        try:
            yield from job.erase(rows)
        finally:  # as above, even if an answer was lost
            for row in rows:
                self._runtime.uncache(row.id)

    def _release(
        self,
        key: Key,
        by: str,
        why: str,
        force: bool,
        fence: int | None,
        unless_running: bool = False,
    ) -> Flow[None]:
        retention = self._resolved.retention_ms
        return self._operate(key, Release(key.id, by, why, retention, force, fence, unless_running))

    def _restart(self, key: Key, by: str, why: str, force: bool, fence: int | None) -> Flow[None]:
        return self._operate(key, Restart(key.id, by, why, FOREVER, force, fence))

    def _skip(
        self,
        key: Key,
        name: str,
        value: object,
        by: str,
        why: str,
        returns: Any,
        fence: int | None,
    ) -> Flow[None]:
        payload = self._resolved.codec.encode(value, returns)
        payload = encrypted_step(self._resolved.cipher, key.id, checked_name(name, key), payload)
        return run_operations.skip_step(key, checked_name(name, key), payload, by, why, fence)

    def _signal(
        self, key: Key, name: str, value: object, returns: Any, by: str, why: str
    ) -> Flow[bool]:
        payload, most = self._resolved.codec.encode(value, returns), self._resolved.max_result_bytes
        if len(payload) > most:
            raise too_large(value, len(payload), most, "signal").about(key)
        name = SIGNAL + checked_name(name, key)
        payload = encrypted_step(self._resolved.cipher, key.id, name, payload)
        return run_operations.send_signal(key, name, payload, self._resolved.retention_ms, by, why)

    @property
    def _keeps_steps(self) -> bool:
        return bool(self.store.capabilities.steps)

    def _resolve(
        self,
        key: Key,
        value: object,
        by: str,
        why: str,
        returns: Any,
        fence: int | None,
        unless_running: bool = False,
    ) -> Flow[None]:
        payload = self._resolved.codec.encode(value, returns)
        payload = encrypted(self._resolved.cipher, key, State.COMPLETED, payload)
        retention = self._resolved.retention_ms
        ask = Resolve(key.id, by, why, retention, payload, fence, unless_running)
        return self._operate(key, ask)

    def _forget(self, key: Key, by: str, why: str) -> Flow[None]:
        return self._operate(key, Forget(key.id, by, why, self._resolved.retention_ms))

    def _discard(self, key: Key, by: str, why: str) -> Flow[None]:
        """The dead letter of this key was removed."""
        return operations.operate(key, Discard(key.id, by, why, self._resolved.retention_ms))

    def _reencrypt(
        self, limit: int | None, after: str, by: str | None, why: str
    ) -> Flow[ReencryptReport]:
        if by is not None:
            operations.check_operator(None, by, why)
        cipher, steps = self.policy.encryption, self._keeps_steps

        def audited(progress: str) -> Flow[None]:
            if by is not None:
                said = f"{why[: operations.LONGEST - len(progress) - 3]} ({progress})".strip()
                yield from audited_act("reencrypt", by, said, self._resolved.retention_ms)

        # Twice, because nothing is rewritten that the audit log does not know of: it may break halfway.
        report = yield from operations.reencrypt(cipher, limit, after, audited, steps)
        if report.rewritten:
            counts = counted(report.rewritten, "answer"), counted(report.examined, "record")
            yield from audited(" of ".join(counts))
        return report

    def _tell_sample(self, stats: Stats) -> Stats:
        """Notify observers of what is in the store."""
        self._notify(sampled(stats))
        return stats

    def _before(self, older_than: Duration) -> int:
        # The unit is hours, so the node's clock is good enough; wrongly parked work can complete.
        return wall_clock() - round(seconds(older_than, "older_than") * 1000)

    def _recorded_before(self, older_than: Duration) -> int | None:
        """None: all recorded answers, even those of the current millisecond."""
        age = seconds(older_than, "older_than")
        expect(age >= 0, "older_than", older_than, "use 0 or more seconds")
        return self._before(age) if age else None

    def _asked(self, given: Conditions) -> dict[str, Any]:
        asked = conditions(given, wall_clock())
        if self._hidden is not None:
            asked["value"], asked["scope"] = self._hidden.asked(asked["value"], asked["scope"])
        return asked

    def _together(self, *asks: Question) -> Flow[list[Any]]:
        """The answers to several questions about all records, in one look where the store can do that."""
        return together(asks, self.store.answers_together)

    def _tell_parked(self, records: list[Record]) -> list[Record]:
        for record in records:
            assert record.key is not None  # only forgotten records have none
            closed = events.Held if record.state is State.HELD else events.Parked
            self._notify(closed(record.key, "its lease ended long ago and it was not redelivered"))
        return records


def sampled(stats: Stats) -> events.StoreSampled:
    # The unit is minutes, so the node's clock is good enough.
    oldest = stats.oldest_expired
    age = 0.0 if oldest is None else max(0.0, wall_clock() / 1000 - oldest.timestamp())
    return events.StoreSampled(stats.by_state, stats.stuck, stats.expired, age, stats.size)


def unread(stats: Stats) -> list[Finding]:
    """A warning if there are records that cannot be read."""
    if not stats.unreadable:
        return []
    what = f"{stats.unreadable:,} of {stats.total:,} records cannot be read, and their keys are refused"
    remedy = "update twicesafe if a newer version wrote them; `twicesafe keys list` names them"
    return [Finding("warn", what, remedy)]


def warn_of_unreadable(ids: Collection[str]) -> None:
    _log.warning(
        "left out %s: damaged, or written by a newer version (%s)",
        counted(len(ids), "unreadable record"),
        named_ids(ids),
    )


def unswept(stats: Stats) -> list[Finding]:
    """A warning if most records are past their retention: a sweep should remove them."""
    if 2 * stats.expired <= stats.total:
        return []
    return [
        Finding(
            "warn",
            f"{stats.expired:,} of {stats.total:,} records are past their retention but not swept",
            "run `twicesafe sweep` regularly, or `receiver.maintain()` in one long-lived process",
        )
    ]


def about_secret(problem: str) -> list[Finding]:
    """The finding of a doctor about the secret of hidden keys."""
    remedy = "give all processes of this store the same ?hidden_keys=… in its URL"
    return [Finding("refuse", problem, remedy)] if problem else []
