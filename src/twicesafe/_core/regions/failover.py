"""Moving the keys of a home to another region: failing over, switching, settling.

Both close the epoch, and then open the next one. Between the two no region starts work. A worker of the
old region may act on what the register said before, for one lease; `cut` is after that.

    fail_over   the old region is lost or cut off: open at once, with what was copied, and in doubt
    switch      both regions are up: wait for `cut`, copy the rest, open without doubt
    settle      the old region's store is back: copy the rest, and end the doubt
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

from msgspec.structs import replace

from ..._values.keys import Key
from ...errors import ConfigurationError, StoreError, UsageError
from ..protocol import Ack, RaiseFences
from .epochs import SOURCE, TARGET, Epoch, On, RegionFlow, change, look
from .following import LEFT, PAGE, Copied, Progress, follow, progress_of
from .pausing import announce, pause, serve
from .settling import Settling

__all__ = ["Move", "Wait", "current", "fail_over", "settle", "switch"]

T = TypeVar("T")

PAUSE: Final = 0.2
"""Seconds between two looks at a clock that has to pass a moment."""


class Wait(NamedTuple):
    seconds: float


class Move(NamedTuple):
    """What a move needs to know. Times are milliseconds."""

    key: Key
    """Of the home, in the register."""
    to: str
    lease: int
    skew: int
    overlap: int
    now: Callable[[], int]
    steps: bool = False
    """The old region's store can keep durable runs."""
    page: int = PAGE
    """Records that are read at once."""
    ours: Callable[[Key], bool] = lambda _: True
    """Whether a key has this home. The stores have the keys of others, too."""
    source: str = ""
    """The region that is copied from. Its store was chosen before the register was asked again."""


def current(key: Key) -> RegionFlow[tuple[Epoch, bytes]]:
    found = yield from look(key)
    if found is None:
        raise ConfigurationError(
            f"the register has no epoch for the keys of {key.value!r}; run regions.create() once, if this is "
            "the right register",
            key=key,
        )
    return found


def fail_over(move: Move, max_lag: float) -> RegionFlow[Epoch]:
    epoch, document = yield from _checked(move)
    before, _ = yield from progress_of(epoch.region)
    lag = before.lag(move.now())
    if lag is None:
        why = (
            "the clock of the follower is ahead of this machine's"
            if before.passes
            else f"no follower has copied {epoch.region!r} to it under this name"
        )
        raise UsageError(
            f"the lag of {move.to!r} behind {epoch.region!r} is unknown: {why}; nothing was changed; "
            "without copies every key would be in doubt",
            key=move.key,
        )
    if lag > max_lag:
        raise UsageError(
            f"{move.to!r} is {lag:.0f} s behind {epoch.region!r}, and the most that was allowed is "
            f"{max_lag:g} s; nothing was changed; to accept that what {epoch.region!r} did in this time "
            f"is in doubt, repeat with max_lag={lag + 60:.0f} or more",
            key=move.key,
        )
    closed, document = yield from _closed(move, epoch, document)
    yield from _while_closed(move, epoch, pause(TARGET, move.key, closed.since, move.now()))
    cut = _cut(move, epoch)
    opening = _opened(move, epoch, document, cut, before, copied_high=before.high, doubt=True)
    return (yield from _while_closed(move, epoch, opening))


def switch(move: Move) -> RegionFlow[Epoch]:
    epoch, document = yield from look_or_reopen(move)
    if epoch.region == move.to:
        return epoch
    _refuse_moved(move, epoch.region)
    yield from _copied(move, epoch.region)  # most of it, while the old region works
    closed, document = yield from _closed(move, epoch, document)
    try:
        yield from announce(TARGET, move.key, closed.since, move.now())
        cut = _cut(move, epoch)
        yield from _until(move, cut)
        # All its records are of epochs before the next.
        served = replace(closed, base=cut * 1000)
        older = Settling(served, None, move.ours, move.key)
        rest = yield from _copied(move, epoch.region, older if epoch.cut else None, older)
    except (StoreError, UsageError):
        reopening = change(move.key, document, move.now(), closed=False)
        again, _ = yield from _while_closed(move, epoch, reopening)
        with contextlib.suppress(
            StoreError
        ):  # until it is said, the target gets less than it could
            yield from serve(SOURCE, move.key, again, move.now())
        raise
    uncopied = _uncopied(epoch, rest)
    opening = _opened(move, epoch, document, cut, rest, uncopied=uncopied)
    opened = yield from _while_closed(move, epoch, opening)
    yield from serve(TARGET, move.key, opened, move.now())
    return opened


def look_or_reopen(move: Move) -> RegionFlow[tuple[Epoch, bytes]]:
    """A switch that did not end may be taken back: the old region serves its keys again."""
    epoch, document = yield from current(move.key)
    if epoch.closed and epoch.region == move.to:
        epoch, document = yield from change(move.key, document, move.now(), closed=False)
        yield from serve(TARGET, move.key, epoch, move.now())
        return epoch, document
    if (
        epoch.region == move.to and not epoch.doubt
    ):  # the switch to it may have died before its last write
        yield from serve(TARGET, move.key, epoch, move.now())
    return (yield from _checked(move))


def settle(move: Move, lost: bool) -> RegionFlow[Copied]:
    """`lost`: the records of the old region are gone, so nothing will be learned."""
    epoch, document = yield from current(move.key)
    _refuse_moved(move, epoch.source if epoch.doubt and not lost else move.source)
    if epoch.closed or epoch.region != move.to:
        raise _moved(move)
    found = Copied()
    if epoch.doubt and not lost:
        yield from _until(move, epoch.cut)  # what the old region starts is in its store by then
        settling = Settling(epoch, epoch.copied_high, move.ours, move.key)
        found = yield from _copied(move, epoch.source, settling, settling)
    yield from serve(TARGET, move.key, epoch, move.now())
    if epoch.doubt:
        uncopied = () if lost else _uncopied(epoch, found)
        yield from change(move.key, document, move.now(), doubt=False, uncopied=uncopied)
    return found


def _refuse_moved(move: Move, source: str) -> None:
    """Another operator moved the keys first, so the wrong region would be copied."""
    if source != move.source:
        raise _moved(move)


def _moved(move: Move) -> UsageError:
    return UsageError(
        f"the keys of {move.key.value!r} were moved by another operator meanwhile; nothing was changed; look at "
        "regions.status(), then decide again",
        key=move.key,
    )


def _checked(move: Move) -> RegionFlow[tuple[Epoch, bytes]]:
    epoch, document = yield from current(move.key)
    if epoch.region == move.to:
        raise UsageError(
            f"{move.to!r} already serves the keys of {move.key.value!r}; nothing was changed",
            key=move.key,
        )
    if epoch.doubt:
        raise UsageError(
            f"what {epoch.source!r} did before epoch {epoch.number} is still in doubt; nothing was changed; "
            "run regions.settle() first, with lost=True if its records are gone",
            key=move.key,
        )
    return epoch, document


def _closed(move: Move, epoch: Epoch, document: bytes) -> RegionFlow[tuple[Epoch, bytes]]:
    """Also if another operator has closed it: from now on only this one can open the next. An error does not
    say whether it is closed: the reply may have been cut.
    """
    closing = change(move.key, document, move.now(), closed=True)
    return (yield from _while_closed(move, epoch, closing))


def _while_closed(move: Move, epoch: Epoch, flow: RegionFlow[T]) -> RegionFlow[T]:
    """The operator must know if an error leaves the keys without a region."""
    try:
        return (yield from flow)
    except (StoreError, ConfigurationError) as error:
        home, told = move.key.value, error.again()
        told.message = (
            f"{error.message}; the keys of {home!r} may have no region now: look at regions.status(), then repeat this, "
            f"or take it back with regions.switch({home!r}, to={epoch.region!r})"
        )
        raise told from error


def _cut(move: Move, epoch: Epoch) -> int:
    """After it the old region starts nothing. This machine's clock may be behind the one that chose the last cut."""
    return max(move.now(), epoch.cut) + move.lease + move.skew


def _opened(
    move: Move, epoch: Epoch, document: bytes, cut: int, copies: Copied | Progress, **more: Any
) -> RegionFlow[Epoch]:
    # Fences that are times are below `cut` in the old region, and above it here once it has passed.
    base = max(cut * 1000, epoch.base + 1)
    while (yield On(TARGET, RaiseFences(base))) is not Ack.OK:
        if move.now() > cut + 4 * move.skew:
            raise ConfigurationError(
                f"the clock of the store of {move.to!r} is more than {4 * move.skew / 1000:g} s behind this "
                "machine's; set the clocks",
                key=move.key,
            )
        yield Wait(PAUSE)
    opened, _ = yield from change(
        move.key,
        document,
        move.now(),
        number=epoch.number + 1,
        region=move.to,
        closed=False,
        cut=cut,
        base=base,
        source=epoch.region,
        copied_until=copies.until,
        **more,
    )
    return opened


def _copied(
    move: Move, source: str, settling: Settling | None = None, older: Settling | None = None
) -> RegionFlow[Copied]:
    """One pass that copies from this region. Raises if a record could not be copied."""
    found = yield from follow(
        source,
        move.now,
        overlap=move.overlap,
        steps=move.steps,
        page=move.page,
        settling=settling,
        older=older,
        moving=True,
    )
    _refuse_failed(move, found)
    return found


def _uncopied(epoch: Epoch, found: Copied) -> tuple[str, ...]:
    """Records that could not be read in an earlier move are unknown to the next region, too."""
    return tuple({**dict.fromkeys(epoch.uncopied), **dict.fromkeys(found.unreadable)})


def _refuse_failed(move: Move, found: Copied) -> None:
    if found.unreadable_count > LEFT:
        raise UsageError(
            f"{found.unreadable_count} records cannot be read ({', '.join(found.unreadable[:3])}…); nothing was "
            "changed; if a newer version wrote them, update twicesafe here, then repeat this",
            key=move.key,
        )
    if found.failed_count:
        raise UsageError(
            f"{found.failed_count} records could not be copied to {move.to!r} ({', '.join(found.failed[:3])}…); "
            "look at them with twicesafe keys show --id, then repeat this",
            key=move.key,
        )


def _until(move: Move, cut: int) -> RegionFlow[None]:
    while move.now() <= cut:
        yield Wait(PAUSE)
