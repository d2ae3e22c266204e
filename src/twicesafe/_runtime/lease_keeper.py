"""The lease keeper: one thread per store that renews the leases of long-running handlers.

    claim ──────── lease/3 ──────── 2·lease/3 ──────── lease
      │               │ renew            │ renew           │ lease expires
      └ most handlers end here: they cost one dict entry    └ worker stopped 10 % earlier

It is a thread for async receivers too, so a blocked event loop keeps its claims. A failed renewal
is retried soon, without limit; a *refused* one marks the claim as gone, unless its end is being
recorded: the store renews no recorded claim, although its owner may not know yet that it is
recorded. Nothing is renewed past ``max_lease``: a hung handler loses its key. The thread ends when
its keeper is garbage-collected, so a receiver that is dropped without `close` leaves no thread
behind.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final

from .. import events as ev
from .._core.protocol import Ack, Renew
from .._values.clocks import WorkerClock
from .._values.context import MARGIN, ActiveClaim
from .._values.wakeup import Wakeup

__all__ = ["KEEPER", "LeaseKeeper"]

KEEPER: Final = "twicesafe-lease-keeper"
"""The name of its thread."""

_log = logging.getLogger("twicesafe")


class LeaseKeeper:
    def __init__(
        self,
        perform_many: Callable[[Sequence[Any]], list[Any]],
        clock: WorkerClock,
        notify: Callable[[ev.Event], None],
    ) -> None:
        self._perform_many = perform_many
        self._clock = clock
        self._notify = notify
        self._live: dict[ActiveClaim, float] = {}
        """Claims and when to renew each."""
        self._reset()

    def _reset(self) -> None:
        self._awake = False
        self._pace = float("inf")
        self._seen = 0
        self._added = 0
        self._wakeup = Wakeup()
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, claim: ActiveClaim) -> None:
        third = claim.lease / 3
        due = self._live[claim] = claim.renewed + third
        self._added += 1
        # Already due: its answer was late, and the next round might be too late.
        if not self._awake or third < self._pace or due <= self._clock():
            self._rouse(third)

    def add_all(self, claims: Sequence[ActiveClaim]) -> None:
        """Claims that were granted together."""
        if not claims:
            return
        live = self._live
        for claim in claims:
            live[claim] = claim.renewed + claim.lease / 3
        self._added += len(claims)
        third = min(claim.lease for claim in claims) / 3
        if not self._awake or third < self._pace or claims[0].renewed + third <= self._clock():
            self._rouse(third)

    def remove(self, claim: ActiveClaim) -> None:
        self._live.pop(claim, None)

    def close(self) -> None:
        self._closed, self._awake = True, False
        self._wakeup.set()

    def forget_all(self) -> None:
        """After a fork: the thread and its claims stayed with the parent."""
        self._live = {}
        self._reset()

    # -- the thread ---------------------------------------------------------------------------

    def _rouse(self, pace: float) -> None:
        if self._closed:
            self._reset()  # claimed while it was closed: renewed like any other claim
        self._pace = min(self._pace, pace)
        self._awake = True
        self._wakeup.set()
        if self._thread is None:
            wakeup = self._wakeup
            self._thread = threading.Thread(
                target=_keep,
                args=(weakref.ref(self, lambda _: wakeup.set()), wakeup),
                name=KEEPER,
                daemon=True,
            )
            try:
                self._thread.start()
            except BaseException:  # no thread left, or an interrupt: the next claim tries again
                self._thread, self._awake = None, False
                raise

    def _round(self) -> bool:
        """Renew what is due. False: closed."""
        if self._closed:
            return False
        try:
            self._renew_due()
        except (Exception, SystemExit):  # an observer that exits would end this thread only
            _log.exception("the lease keeper continues after an error")
        return True

    def _next_round(self) -> float | None:
        """Seconds to the next round; None: no claims, sleep until woken."""
        if not self._live and self._added == self._seen:
            self._awake, self._pace = False, float("inf")
            if not self._live:  # added just now: either add() saw us asleep, or we see it
                return None
            self._awake = True
        self._seen = self._added
        soonest = min(list(self._live.values()), default=float("inf")) - self._clock()
        return max(0.001, min(soonest, self._pace if self._pace < float("inf") else 1.0))

    def _renew_due(self) -> None:
        now = self._clock()
        due: list[ActiveClaim] = []
        for claim, at in list(self._live.items()):
            if claim.settled or claim.gone or now - claim.started >= claim.max_lease:
                self._live.pop(claim, None)
            elif at <= now:
                due.append(claim)
        if due:
            self._renew(due, now)

    def _renew(self, due: list[ActiveClaim], sent: float) -> None:
        spans = [min(c.lease, c.max_lease - (sent - c.started)) for c in due]
        asks = [
            Renew(claim.key.id, claim.owner, claim.fence, max(1, round(span * 1000)))
            for claim, span in zip(due, spans, strict=True)
        ]
        try:
            answers = self._perform_many(asks)
        except Exception as error:
            answers = [error] * len(asks)
        for claim, span, answer in zip(due, spans, answers, strict=True):
            if answer is Ack.OK:
                claim.renewed = sent
                claim.expires = max(claim.expires, sent + span * (1 - MARGIN))
                self._postpone(claim, sent + claim.lease / 3)
            elif isinstance(answer, Exception):
                self._postpone(claim, self._clock() + min(1.0, claim.lease / 10))
                self._notify(ev.RenewalFailed(claim.key, type(answer).__name__))
            else:
                self._live.pop(claim, None)
                if not (claim.settled or claim.over or claim.ending):
                    claim.gone = True
                    self._notify(ev.RenewalRefused(claim.key))

    def _postpone(self, claim: ActiveClaim, at: float) -> None:
        if claim in self._live:
            self._live[claim] = at


def _keep(keeper: weakref.ref[LeaseKeeper], wakeup: Wakeup) -> None:
    """The thread: between rounds it references only the wakeup, so the keeper can be collected."""
    while True:
        there = keeper()
        if there is None or not there._round():
            return
        pause = there._next_round()
        del there
        wakeup.wait(pause)
