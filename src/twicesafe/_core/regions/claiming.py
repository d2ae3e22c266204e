"""A claim in a region: may this region start work for this key, and can it know that the key is new?

A region starts work only if the register said that it is the home of the key, at most one lease ago.
That is compared before the claim is sent and again after it is won, so a region whose epoch was closed
starts nothing after `cut`, and what it started is in its store by then.

After a failover the records of the old region may be incomplete. A message that was sent before the
cut is *in doubt* if its key is unknown here, or if its copied record is unfinished. The old region
may have done the work. The setting `unknown` decides: hold it, run it, or ask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from msgspec.structs import replace

from ..._values.clocks import WorkerClock
from ..._values.keys import Key
from ..._values.own_records import is_own
from ..._values.records import Cause, Row, State
from ...errors import NotHomeError, StoreError
from ..protocol import Abandon, Ack, Adopt, Claimed, ClaimRequest, Complete, Fail, Read, Verdict
from .epochs import Epoch, On, RegionFlow, key_of, look

__all__ = [
    "DOUBT",
    "HELD",
    "HERE",
    "PROBED",
    "RAN",
    "UNDECIDED",
    "Probe",
    "Region",
    "Unknown",
    "claim",
    "finishing",
    "held",
    "is_decided",
    "mark",
]

HERE: Final = "here"
"""The place of the region's own store."""

DOUBT: Final = "RegionDoubt"
"""How the recorded error of every record begins that was in doubt. The number of the epoch that decided
about it follows: a later epoch decides again."""

HELD, RAN, PROBED = "held", "ran", "done elsewhere"

UNDECIDED: Final = "undecided"
"""When it was settled, the old region had begun the work, and this one had not decided about it."""

Unknown: TypeAlias = Literal["hold", "run"] | Callable[[Key], Any]

_SAID: Final = {"hold": None, "run": False}
"""What a probe would have said."""

MOST: Final = 10_000
"""Claims in doubt that a process remembers."""


class Probe(NamedTuple):
    """Ask the user's function: True: it was done. False: it was not. None: not known."""

    key: Key


class Region:
    """One region, as its workers see it. Shared by all threads."""

    def __init__(
        self,
        name: str,
        register: str,
        *,
        home: Callable[[Key], str],
        sent_at: Callable[[Key], int | None],
        unknown: Unknown,
        lease: float,
        clock: WorkerClock,
    ) -> None:
        self.name, self.register = name, register
        self.home, self.sent_at, self.unknown = home, sent_at, unknown
        self.lease, self.clock = lease, clock
        self.retention = 86_400_000
        """Milliseconds for which it keeps what a probe said was done: like an answer, so its receiver sets it."""
        self.ran: dict[bytes, str] = {}
        """Owners of claims in doubt that run nevertheless, and the marks of their records."""
        self.doubted: dict[bytes, int] = {}
        """Owners of claims over records in doubt, and the numbers of the epochs."""
        self._known: dict[str, tuple[Epoch | None, float]] = {}

    def known(self, home: str) -> tuple[Epoch | None, float]:
        return self._known.get(home, (None, 0.0))

    def remember(self, owner: bytes, marked: str) -> None:
        """Not forgotten when it ends: the request that ends it may be sent again."""
        _keep(self.ran, owner, marked)

    def doubts(self, owner: bytes, epoch: Epoch, row: Row | None) -> bool:
        """For a claim that is sent again because its reply was lost. It finds its own record, which
        no longer shows what was there before: a fence that is a time is above the base at once.
        """
        if row is None or self.doubted.get(owner) != epoch.number:
            return False
        return not is_decided(epoch, row)

    def learn(self, home: str, epoch: Epoch | None, sent: float) -> None:
        """`sent`: when the register was asked; the answer is not older. So it holds for a lease from then,
        whatever order answers come in."""
        mine = epoch is not None and epoch.region == self.name and not epoch.closed
        self._known[home] = (epoch, sent + self.lease) if mine else (None, 0.0)


def _keep(notes: dict[bytes, Any], owner: bytes, note: Any) -> None:
    notes[owner] = note
    if len(notes) > MOST:
        notes.pop(next(iter(notes)), None)


def _confirmed(region: Region, key: Key) -> RegionFlow[Epoch]:
    """The epoch under which this region may start work for this key, or an error."""
    home = region.home(key)
    epoch, until = region.known(home)
    if region.clock() >= until:
        sent = region.clock()
        try:
            found = yield from look(key_of(region.register, home))
        except StoreError as error:
            raise NotHomeError(
                f"region {region.name!r} cannot ask the register whether it still serves the keys of "
                f"{home!r} ({error}); the handler was not started; try again later",
                key=key,
            ) from error
        epoch = None if found is None else found[0]
        region.learn(home, epoch, sent)
        if region.clock() >= sent + region.lease:
            raise NotHomeError(
                f"the register took longer than a lease of {region.lease:g} s to answer region "
                f"{region.name!r}; the handler was not started; try again",
                key=key,
            )
    if epoch is None:
        raise NotHomeError(
            f"the register has no epoch for the keys of {home!r}; the handler was not started; run "
            "regions.create() once, if this is the right register",
            key=key,
        )
    if epoch.closed:
        raise NotHomeError(
            f"the keys of {home!r} are moving to another region; the handler was not started; try again",
            key=key,
        )
    if epoch.region != region.name:
        raise NotHomeError(
            f"region {epoch.region!r} serves the keys of {home!r}, and this is {region.name!r}; the "
            f"handler was not started; send the message to {epoch.region!r}",
            key=key,
        )
    return epoch


def claim(region: Region, ask: ClaimRequest) -> RegionFlow[Claimed]:
    if is_own(ask.key.scope):  # each region maintains its own store
        return (yield On(HERE, ask))  # type: ignore[no-any-return]
    epoch = yield from _confirmed(region, ask.key)
    doubtful = False
    if epoch.cut and _is_old(region, epoch, ask.key):
        row: Row | None = yield On(HERE, Read(ask.key.id))
        doubtful = _in_doubt(epoch, ask.key, row) or region.doubts(ask.owner, epoch, row)
        if row is not None and doubtful:
            _keep(region.doubted, ask.owner, epoch.number)
        elif row is not None and _was_in_doubt(row):
            region.remember(ask.owner, mark(epoch, RAN))  # another attempt
    sent = replace(ask, hold=True) if doubtful and region.unknown != "run" else ask
    answer: Claimed = yield On(HERE, sent)
    if answer.verdict is not Verdict.WON:
        region.ran.pop(ask.owner, None)
        if doubtful and answer.closes:
            yield from _mark(epoch, ask.key)
        return answer
    try:
        later = yield from _confirmed(region, ask.key)
        if later.number != epoch.number:
            raise NotHomeError(
                f"region {region.name!r} has changed its epoch meanwhile; the handler was not started; "
                "try again",
                key=ask.key,
            )
    except NotHomeError:
        region.ran.pop(ask.owner, None)
        if not _took_over(answer):
            yield On(HERE, Abandon(ask.key.id, ask.owner, region.retention))
        raise
    if doubtful:
        return (yield from _doubted(region, epoch, ask, answer))
    if answer.fence <= epoch.base:
        return (yield from _raised(region, epoch, ask, answer))
    return answer


def _is_old(region: Region, epoch: Epoch, key: Key) -> bool:
    """Whether the message may have reached the old region. If its time is not known, it may."""
    sent = region.sent_at(key)
    return sent is None or sent < epoch.cut


def _in_doubt(epoch: Epoch, key: Key, row: Row | None) -> bool:
    """Whether the old region may have done more than this record says, and this epoch has not decided."""
    if row is None:
        return epoch.lacks(key)
    if is_decided(epoch, row):
        return False
    if row.error.startswith(mark(epoch, UNDECIDED)):
        return row.cause is not Cause.OPERATOR
    if row.state is State.IN_PROGRESS:
        # A claim of this epoch that was not decided about is in doubt as before: its worker died.
        return epoch.lacks(key) or row.fence <= epoch.base or _inherited(epoch, row)
    return row.state is State.RELEASED and epoch.lacks(key)


def _inherited(epoch: Epoch, row: Row) -> bool:
    """A claim that took over a record of an older epoch. Where fences are times it is above the
    base at once, also if its worker died before it decided."""
    return row.cause is Cause.LEASE_EXPIRED and row.created_at < epoch.cut


def _took_over(answer: Claimed) -> bool:
    """The worker before may have done the work: given back, the record would say that none had begun."""
    return answer.cause is Cause.LEASE_EXPIRED


def _was_in_doubt(row: Row) -> bool:
    """In this epoch or an older one: what runs again stays counted."""
    return row.error.startswith(DOUBT)


def mark(epoch: Epoch, what: str) -> str:
    return f"{DOUBT} {epoch.number}: {what}"


def is_decided(epoch: Epoch, row: Row) -> bool:
    """Only what was decided to run, or released by an operator, has such a mark and is claimed again."""
    marked = row.error.startswith(mark(epoch, ""))
    return marked and not row.error.startswith(mark(epoch, UNDECIDED))


def _mark(epoch: Epoch, key: Key) -> RegionFlow[None]:
    """A worker died before it could say why it holds this key."""
    row: Row | None = yield On(HERE, Read(key.id))
    if row is not None and row.state is State.HELD and not is_decided(epoch, row):
        yield On(HERE, Adopt(held(epoch, row), over=row.fence))


def held(epoch: Epoch, row: Row) -> Row:
    """The row, in doubt and held. Above the base, no unfinished copy of an older epoch replaces it:
    between a read of it and a claim, it would become work that can be taken over."""
    return replace(row, fence=max(row.fence, epoch.base) + 1, error=mark(epoch, HELD))


def _doubted(
    region: Region, epoch: Epoch, ask: ClaimRequest, answer: Claimed
) -> RegionFlow[Claimed]:
    """Each way ends with one write that says what was decided. Before it, the key is in doubt as before."""
    found = _SAID[region.unknown] if isinstance(region.unknown, str) else (yield Probe(ask.key))
    if found is False:
        return (yield from _raised(region, epoch, ask, answer, mark(epoch, RAN)))
    id_, fence = ask.key.id, answer.fence
    if found is True:
        done = mark(epoch, PROBED)
        yield On(HERE, Complete(id_, ask.owner, fence, region.retention, None, error=done))
        return (yield On(HERE, ask))  # type: ignore[no-any-return]  # what later deliveries get
    row: Row | None = yield On(HERE, Read(id_))
    if row is not None and row.owner == ask.owner and row.fence == fence:
        closed = replace(held(epoch, row), state=State.HELD, lease_until=0, expires_at=0)
        if (yield On(HERE, Adopt(closed, over=fence))) is Ack.OK:
            reason = (
                f"region {epoch.source!r} may have done it before the failover to {region.name!r}"
            )
            return Claimed(Verdict.HELD, closes=True, reason=reason)
    return Claimed(Verdict.BUSY, wait=100)


def _raised(
    region: Region, epoch: Epoch, ask: ClaimRequest, answer: Claimed, error: str | None = None
) -> RegionFlow[Claimed]:
    """Give the claim a fence of this epoch: that of a copied record continues the old region's. If
    its worker dies, the policy decides (`hold`): the key is no longer in doubt.
    """
    row: Row | None = yield On(HERE, Read(ask.key.id))
    if row is not None and row.owner == ask.owner and row.fence == answer.fence:
        fence = max(row.fence, epoch.base) + 1
        said = row.error if error is None else error
        raised = replace(row, fence=fence, hold=ask.hold, error=said)
        if (yield On(HERE, Adopt(raised, over=row.fence))) is Ack.OK:
            if error is not None:
                region.remember(ask.owner, error)
            return replace(answer, fence=fence)
    region.ran.pop(ask.owner, None)
    return Claimed(Verdict.BUSY, wait=100)


def finishing(region: Region, ask: Any) -> Any:
    """The request of an owner that ends its claim: a result that was in doubt says so."""
    marked = region.ran.get(ask.owner) if type(ask) in (Complete, Fail) else None
    if marked is None:
        return ask
    return replace(ask, error=f"{marked}, {ask.error}" if ask.error else marked)
