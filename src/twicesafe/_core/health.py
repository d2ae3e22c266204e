"""Health: what is measured, compared with thresholds, one check after the other. Pure.

Each check says what it found, what the limit is, why it matters and what to do next. The worst check
is the status: a *degraded* receiver keeps its promises and needs a look, a *failing* one cannot work.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, TypeAlias

from .._values.records import State, Stats
from .._values.settings import expect, suggesting

__all__ = ["Check", "Health", "Recent", "Signs", "Status", "Thresholds", "judge"]

Status: TypeAlias = Literal["ok", "degraded", "failing"]

ENOUGH: Final = 20
"""The fewest deliveries for which a share is meaningful."""

_RANK: Final = {"unknown": 0, "ok": 0, "degraded": 1, "failing": 2}


@suggesting("threshold")
@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """When a check is no longer ok. Shares are from 0 to 1, times are seconds."""

    duplicates: float = 0.5
    """Share of the deliveries that are duplicates."""
    store_p99: float = 0.5
    """The 99th percentile of the store's answers."""
    conflicts: float = 0.2
    """Share of the deliveries that found their key in progress."""
    held: int = 0
    """Held records."""
    parked: int = 0
    """Parked records."""
    unprotected: int = 0
    """Handlers that ran without a claim."""
    max_bytes: int | None = None
    """Bytes that the store may use: degraded from nine tenths on, failing from all of it; None: no limit."""
    window: float = 0.9
    """Age of the oldest duplicate, as a share of the window (the policy's retention)."""
    sweep_behind: float = 3600.0
    """Seconds that an expired record may wait for a sweep."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            fine = isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0
            none = field.name == "max_bytes" and value is None
            expect(fine or none, field.name, value, "use a number, 0 or more")


@dataclass(frozen=True, slots=True)
class Check:
    """One check: what was found, and what to do about it."""

    name: str
    status: Literal["ok", "degraded", "failing", "unknown"]
    value: float | None
    limit: float | None
    reason: str
    next_step: str = ""


@dataclass(frozen=True, slots=True)
class Health:
    """The result of `receiver.health()`."""

    status: Status
    checks: tuple[Check, ...]

    def __getitem__(self, name: str) -> Check:
        return next(check for check in self.checks if check.name == name)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        names = Check.__slots__
        return {
            "status": self.status,
            "checks": [{name: getattr(one, name) for name in names} for one in self.checks],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Recent:
    """What this process has counted lately; only a receiver with observers counts."""

    seconds: float
    deliveries: int
    duplicates: int
    conflicts: int
    unprotected: int
    too_late: int
    """Duplicates that came after the window: their handlers ran again."""
    oldest_share: float
    """Upper bound of the age of the oldest duplicate, as a share of the window."""
    store_p99: float | None
    """None: the store was not asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """What is known when health is judged."""

    answered_in: float | None
    """Seconds until the store answered; None: it did not."""
    error: str = ""
    stats: Stats | None = None
    oldest_expired: float = 0.0
    recent: Recent | None = None
    breaker: str = ""
    """The state of the circuit breaker; empty: there is none."""
    falls_back: bool = False
    fallback_answers: bool = False
    """Asked only if the store did not answer."""


def judge(signs: Signs, limits: Thresholds) -> Health:
    checks = (
        _store(signs),
        *_breaker(signs),
        *_counted(signs.stats, signs.oldest_expired, limits),
        *_recent(signs.recent, limits),
    )
    worst = max(checks, key=lambda check: _RANK[check.status]).status
    return Health("ok" if worst == "unknown" else worst, checks)


def _store(signs: Signs) -> Check:
    if signs.answered_in is None:
        instead = "; the fallback store answers" if signs.fallback_answers else ""
        return Check(
            "store",
            "degraded" if signs.fallback_answers else "failing",
            None,
            None,
            f"the store does not answer: {signs.error}{instead}",
            "check the store and the network; `twicesafe doctor` says more once it answers",
        )
    return Check("store", "ok", signs.answered_in, None, "the store answers")


def _breaker(signs: Signs) -> Iterator[Check]:
    if signs.breaker in ("", "closed"):
        return
    yield Check(
        "breaker",
        "degraded" if signs.falls_back else "failing",
        None,
        None,
        "the store failed repeatedly, so claims "
        + ("go to the fallback store" if signs.falls_back else "are refused without asking it"),
        "end the outage of the store; a claim tries again by itself",
    )


def _counted(stats: Stats | None, behind: float, limits: Thresholds) -> Iterator[Check]:
    if stats is None:
        for name in ("held", "parked", "size", "sweep"):
            yield Check(name, "unknown", None, None, "the store was not counted")
        return
    for state, limit, why in (
        (State.HELD, limits.held, "the outcome is unknown, and duplicates are refused"),
        (State.PARKED, limits.parked, "all attempts are used up, and nothing runs"),
    ):
        step = f"run `twicesafe keys list --state {state.value}`, then resolve or release each"
        keys = stats.by_state.get(state, 0)
        yield _above(state.value, keys, limit, f"{keys:,} {state.value}: {why}", step)
    if stats.unreadable:
        yield Check(
            "unreadable",
            "degraded",
            stats.unreadable,
            0,
            "these records are damaged, or a newer version wrote them: their keys are refused",
            "update twicesafe if a newer version wrote them; else find them with `twicesafe keys list`, and restore or "
            "delete their rows in the store",
        )
    yield _sized(stats.size, limits.max_bytes)
    yield _above(
        "sweep",
        behind,
        limits.sweep_behind,
        f"{stats.expired:,} records are past their retention and not swept",
        "run `twicesafe sweep` regularly, or `receiver.maintain()` in one long-lived process",
    )


def _sized(size: int | None, most: int | None) -> Check:
    if size is None or most is None:
        why = "no limit is set (max_bytes)" if most is None else "this store cannot say its size"
        return Check("size", "unknown", size, most, why)
    status: Status = "failing" if size >= most else "degraded" if size >= 0.9 * most else "ok"
    return Check(
        "size",
        status,
        size,
        most,
        f"the store uses {size / most:.0%} of its {most:,} bytes",
        "" if status == "ok" else "sweep, shorten the retention, or give the store more room",
    )


def _recent(recent: Recent | None, limits: Thresholds) -> Iterator[Check]:
    if recent is None:
        why = "not known here: ask /health of a service with observers"
        for name in ("store_p99", "duplicates", "conflicts", "window", "unprotected"):
            yield Check(name, "unknown", None, None, why)
        return
    lately = f"in the last {recent.seconds:.0f} s"
    if recent.store_p99 is None:
        yield Check(
            "store_p99", "unknown", None, limits.store_p99, f"the store was not asked {lately}"
        )
    else:
        yield _above(
            "store_p99",
            recent.store_p99,
            limits.store_p99,
            f"one request in a hundred took at least this long {lately}",
            "look at the store's load and at the network between",
        )
    for name, count, limit, step in (
        (
            "duplicates",
            recent.duplicates,
            limits.duplicates,
            "find the sender that retries too early or too often",
        ),
        (
            "conflicts",
            recent.conflicts,
            limits.conflicts,
            "compare the handler's time with the sender's time-out: it retries while the first still runs",
        ),
    ):
        share = count / recent.deliveries if recent.deliveries >= ENOUGH else 0.0
        why = f"{count:,} of {recent.deliveries:,} deliveries {lately}"
        yield _above(name, share, limit, why, step)
    yield _window(recent, limits.window, lately)
    yield _above(
        "unprotected",
        recent.unprotected,
        limits.unprotected,
        f"handlers ran without a claim {lately}, because the store was down (outage='run')",
        "compare your own records of that time: an effect may have happened twice",
    )


def _window(recent: Recent, limit: float, lately: str) -> Check:
    step = "use a longer retention: `Policy(retention=…)`"
    if recent.too_late:
        why = f"{recent.too_late:,} duplicates came after the window {lately}: their handlers ran again"
        return Check("window", "degraded", recent.oldest_share, limit, why, step)
    why = f"the oldest duplicate {lately} came within {recent.oldest_share:.0%} of the window"
    return _above("window", recent.oldest_share, limit, why, step)


def _above(name: str, value: float, limit: float, why: str, step: str) -> Check:
    if value > limit:
        return Check(name, "degraded", value, limit, why, step)
    return Check(name, "ok", value, limit, "within its limit")
