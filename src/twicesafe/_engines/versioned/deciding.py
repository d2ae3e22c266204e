"""The requests about one record: decided by `_core.lifecycle`, written if the version is still the same.

    claim     write, if there is no record. If there is one, it decides: most repeats end here; a takeover is
              one more write, if the record is still that version.
    complete  update, if the record is in progress under this owner and fence. So do renew and fail.
              If it is not, the record that is there decides, as for a claim.
    others    read, decide, write, if the record is still that version.

The driver may repeat a worker's write after a lost reply. If the first write had succeeded, the second is
refused, and the record shows that it is ours.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Final

from ..._core import lifecycle
from ..._core.protocol import (
    Ack,
    Adopt,
    Claimed,
    ClaimRequest,
    Complete,
    Discard,
    Fail,
    Forget,
    History,
    RaiseFences,
    Read,
    Release,
    Renew,
    Request,
    Resolve,
)
from ..._values.records import AuditEntry, Row, State
from ...errors import StoreUnavailableError
from ...stores._base import Program
from .lease_watch import LeaseWatch
from .record import OwnerWrite, Versioned, WriteRefused, audited, entries_of

__all__ = ["VersionedPrograms"]

OPERATORS: Final = (Release, Resolve, Forget, Discard)
"""Each of these is in the audit trail, so it is never sent twice."""

TRIES: Final = 30
"""Each refused try means that another worker wrote this record meanwhile."""

_BYTES: Final = bytes(bytearray(b"not known"))
_TEXT: Final = str(_BYTES, "ascii")
"""In place of fields that an owner does not know. No request contains these two objects, so a field of a
decision that is another object was set by the decision."""

_MAY_DIFFER: Final = (
    "state", "attempt", "lease_until", "changed_at", "expires_at", "cause", "fingerprint", "result",
    "error",
)  # fmt: skip


class VersionedPrograms(ABC):
    """The base class of an engine's programs."""

    def __init__(self, leases: LeaseWatch) -> None:
        self.clock = leases.clock
        self.skew = leases.skew
        self._leases = leases

    @abstractmethod
    def load(self, id_: bytes) -> Program[Versioned | None]:
        """The record, as the last acknowledged write left it."""

    @abstractmethod
    def write(
        self, after: Versioned, before: Versioned | None, once: bool
    ) -> Program[WriteRefused | None]:
        """Write this record if the present one is still `before`; None: if there is none.

        ``once``: never repeat it. If its reply is lost, others may have acted on the record meanwhile, and
        a repeat would be a second act.
        """

    @abstractmethod
    def update(self, write: OwnerWrite) -> Program[WriteRefused | None]: ...

    def perform(self, ask: Request) -> Program[Any]:
        return getattr(self, ask.op)(ask)  # type: ignore[no-any-return]

    # -- decide, write, and decide again if another worker wrote first ---------------------------

    def claim(self, ask: ClaimRequest) -> Program[Claimed]:
        """A new key is the common case, so this begins as if there were no record."""
        return self.settle(ask, None)

    def settle(self, ask: Any, found: Versioned | None) -> Program[Any]:
        for _ in range(TRIES):
            answer, after = self.decide(ask, found)
            if after is None:
                return answer
            once = _is_anonymous(ask, answer)
            refused = yield from self.write(after, found, once)
            if refused is not None:
                found = refused.found
                if once or found != after:
                    continue
                # It is ours: the driver repeated the call, because the first reply was lost.
            self.wrote(after)
            return answer
        raise StoreUnavailableError(
            f"the record {ask.id[:4].hex()} changed {TRIES} times while it was being written; nothing "
            "was written; try again"
        )

    def wrote(self, after: Versioned) -> None:
        if after.row.state is State.IN_PROGRESS:
            self._leases.saw(after)

    def decide(
        self, ask: Any, found: Versioned | None, now: int | None = None
    ) -> tuple[Any, Versioned | None]:
        """The answer of the lifecycle, and the record to write."""
        if now is None:
            now = self.clock.now()
        row = None if found is None else found.row
        lease = 0
        if isinstance(ask, ClaimRequest):
            judged = None if found is None else self._leases.judged(found, now)
            answer, after = lifecycle.claim(judged, ask, now)
            lease = ask.lease
            if after is not None and answer.fence:
                # P3: a fence is the time, so it is above those of any deleted record. Also that of
                # a takeover: the record may be one that the network delivered late, after its
                # successor was deleted.
                answer.fence = after.fence = max(after.fence, now * 1000)
        else:
            if found is not None and getattr(ask, "unless_running", False):
                row = self._leases.judged(found, now)
            answer, after = getattr(lifecycle, ask.op)(row, ask, now)
            if isinstance(ask, Discard) and found is not None:
                lease = found.lease
            if isinstance(ask, Renew) and after is not None:
                lease = max(ask.lease, after.lease_until - now)
            elif isinstance(ask, Adopt) and after is not None:
                lease = max(1, after.lease_until - now)
        if after is None:
            return answer, None
        trail = [] if found is None else found.audit
        if found is not None and isinstance(ask, OPERATORS):
            trail = audited(found, ask, now if after is row else after.changed_at)
        revision = 0 if found is None else found.revision + 1
        running = after.state is State.IN_PROGRESS
        return answer, Versioned(after, revision, lease if running else 0, trail)

    # -- an owner's requests: one update, if all is as the owner believes -------------------------

    def _own(self, ask: Renew | Complete | Fail) -> Program[Ack]:
        refused = yield from self.update(self.owner_write(ask))
        if refused is not None:
            return (yield from self.settle(ask, refused.found))  # type: ignore[no-any-return]
        self.updated(ask)
        return Ack.OK

    renew = complete = fail = _own

    def updated(self, ask: Renew | Complete | Fail) -> None:
        self._leases.forget(ask.id)

    def owner_write(self, ask: Renew | Complete | Fail) -> OwnerWrite:
        """What the lifecycle would change in a record in progress under this owner and fence."""
        now = self.clock.now()
        believed = Row(
            ask.id, (), "", State.IN_PROGRESS, ask.fence, 0, ask.owner, -1, -1, -1, -1, False, None,
            _BYTES, _BYTES, _TEXT,
        )  # fmt: skip
        _, after = getattr(lifecycle, ask.op)(believed, ask, now)
        changes = {
            name: getattr(after, name)
            for name in _MAY_DIFFER
            if getattr(after, name) is not getattr(believed, name)
        }
        whose = ask.id, ask.owner, ask.fence, changes
        if isinstance(ask, Renew):
            return OwnerWrite(*whose, ask.lease, ends_by=after.lease_until)  # never shortens it
        bare = self._leases.is_bare(ask.id, ask.fence)
        if isinstance(ask, Fail) and not ask.hold:
            # With more attempts, it would be parked.
            return OwnerWrite(*whose, attempts_below=ask.max_attempts, bare=bare)
        return OwnerWrite(*whose, bare=bare)

    # -- the rest of one record --------------------------------------------------------------------

    def _read_and_settle(self, ask: Any) -> Program[Ack]:
        found = yield from self.load(ask.id)
        return (yield from self.settle(ask, found))  # type: ignore[no-any-return]

    abandon = release = resolve = forget = discard = rewrite = adopt = _read_and_settle

    def raise_fences(self, ask: RaiseFences) -> Program[Ack]:
        """The fence of a new record is the time."""
        yield from ()
        return Ack.OK if self.clock.now() * 1000 > ask.above else Ack.REFUSED

    def read(self, ask: Read) -> Program[Row | None]:
        found = yield from self.load(ask.id)
        if found is None or lifecycle.is_expired(found.row, self.clock.now()):
            return None
        return found.row

    def history(self, ask: History) -> Program[list[AuditEntry]]:
        found = yield from self.load(ask.id)
        return [] if found is None else entries_of(found)


def _is_anonymous(ask: Any, answer: Any) -> bool:
    """Whether another worker may write the very same record, within a millisecond: an operator's action, or a
    claim that closes its key and is not won. It is never sent twice, so one that is there is not ours."""
    return isinstance(ask, OPERATORS) or (isinstance(ask, ClaimRequest) and not answer.fence)
