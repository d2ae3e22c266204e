"""What operators ask of a store, as flows that `Operators` and `AsyncOperators` run. No I/O."""

from __future__ import annotations

from typing import Any

from .. import events
from .._core import completing, operations
from .._core.commands import Flow
from .._core.encrypting import encrypted, encrypted_step
from .._core.protocol import Forget, Release, Resolve
from .._core.run_requests import FOREVER, Restart
from .._core.run_state import checked_name
from .._core.searching import Conditions, conditions
from .._values.clocks import wall_clock
from .._values.keys import Key
from .._values.records import Record, State, Stats
from .._values.settings import Duration, expect, seconds
from ..stores._base import Finding
from ._base import ReceiverBase

__all__ = ["OperatorFlows", "sampled", "unswept"]


class OperatorFlows(ReceiverBase):
    """Every operator's request as a flow, with what must follow it in this process."""

    def _operate(self, key: Key, ask: Release | Resolve | Forget) -> Flow[None]:
        if self._keeps_steps:
            yield from operations.operate_run(key, ask)
        else:
            yield from operations.operate(key, ask)
        cache = self._runtime.cache
        if cache is not None:
            cache.drop(key.id)  # after the store's change, so nothing refills it

    def _release(self, key: Key, by: str, why: str, force: bool, fence: int | None) -> Flow[None]:
        retention = self._resolved.retention_ms
        return self._operate(key, Release(key.id, by, why, retention, force, fence))

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
        return completing.skip_step(key, checked_name(name, key), payload, by, why, fence)

    def _signal(
        self, key: Key, name: str, value: object, returns: Any, by: str, why: str
    ) -> Flow[bool]:
        payload = self._resolved.codec.encode(value, returns)
        payload = encrypted_step(self._resolved.cipher, key.id, name, payload)
        return completing.send_signal(
            key, checked_name(name, key), payload, self._resolved.retention_ms, by, why
        )

    @property
    def _keeps_steps(self) -> bool:
        return bool(self.store.capabilities.steps)

    def _resolve(
        self, key: Key, value: object, by: str, why: str, returns: Any, fence: int | None
    ) -> Flow[None]:
        payload = self._resolved.codec.encode(value, returns)
        payload = encrypted(self._resolved.cipher, key, State.COMPLETED, payload)
        retention = self._resolved.retention_ms
        return self._operate(key, Resolve(key.id, by, why, retention, payload, fence))

    def _forget(self, key: Key, by: str, why: str) -> Flow[None]:
        return self._operate(key, Forget(key.id, by, why, self._resolved.retention_ms))

    def _tell_sample(self, stats: Stats) -> Stats:
        """Notify observers of what is in the store."""
        self._notify(sampled(stats))
        return stats

    def _before(self, older_than: Duration) -> int:
        # The unit is hours, so the node's clock is good enough; wrongly parked work can complete.
        return wall_clock() - round(seconds(older_than, "older_than") * 1000)

    def _recorded_before(self, older_than: Duration) -> int | None:
        """None: all that are recorded, also those of this very millisecond."""
        age = seconds(older_than, "older_than")
        expect(age >= 0, "older_than", older_than, "use 0 or more seconds")
        return self._before(age) if age else None

    def _asked(self, given: Conditions) -> dict[str, Any]:
        return conditions(given, wall_clock())

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
