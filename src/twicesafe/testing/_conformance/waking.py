"""Wake-ups: a caller that got "busy" and watches the key is woken when another store object ends it.

Only for stores that declare ``wake``; in others, waiters poll. A wake-up may come without a reason, and
a missed one costs no more than the seconds of the watch.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from ..._core.protocol import Verdict
from .bench import Script, Watched
from .requests import KEY, A, B, claim, release, resolve, won
from .rules import StoreRules, rule

__all__ = ["WakingRules"]

ENDS: Final[dict[str, Any]] = {
    "complete": lambda mine: mine.complete(b"x"),
    "remember": lambda mine: mine.remember(b"x"),
    "fail": lambda mine: mine.fail(),
    "abandon": lambda mine: mine.abandon(),
    "release": lambda _: release(),
    "resolve": lambda _: resolve(),
}


class WakingRules(StoreRules):
    longest_wait: ClassVar[float] = 60.0
    """Seconds of the watch. A watcher that is woken needs far less."""

    @rule(needs="wake", cases=ENDS)
    def test_a_watcher_is_woken_at_the_end(self, case: Any) -> Script[None]:
        mine = yield from won(A)
        assert (yield claim(B)).verdict is Verdict.BUSY
        took = yield Watched(KEY.id, self.longest_wait, meanwhile=case(mine))
        assert took < self.longest_wait / 2, f"the watcher was not woken within {took:.1f} s"
        assert (yield claim(B)).verdict in (Verdict.REPLAY, Verdict.WON)

    @rule(needs="wake")
    def test_a_watcher_that_is_not_woken_returns_in_time(self) -> Script[None]:
        yield from won(A)
        yield claim(B)
        took = yield Watched(KEY.id, 0.05)
        assert took < self.longest_wait / 2
