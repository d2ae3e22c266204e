"""Policy: the settings that decide how a receiver behaves, validated when created.

Policies are never merged: the decorator's applies if it has one, else the receiver's, else the
default. Durations are seconds, timedeltas or text ("7d", "1h30m"). An invalid setting raises
`ConfigurationError`, which names the field and the fix.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from .settings import Duration, check_methods, expect, is_whole, seconds, suggesting

if TYPE_CHECKING:
    from .cipher import Cipher
    from .codecs import Codec
    from .signed_key import SignatureCheck

__all__ = ["Backoff", "Policy"]


@suggesting("back-off setting")
@dataclass(frozen=True, slots=True)
class Backoff:
    """The delay between a failed attempt and the next one: ``first * factor**n``, at most ``most``.

    ``jitter`` is the share of the delay that is random, so that retries do not come at the same time.
    """

    first: Duration = 0.1
    """The delay after the first failed attempt."""
    factor: float = 2.0
    """By how much each delay is longer than the one before."""
    most: Duration = 60.0
    """The longest delay."""
    jitter: float = 0.5
    """The share of the delay that is random, from 0 to 1."""

    def __post_init__(self) -> None:
        for name in ("first", "most"):
            value = seconds(getattr(self, name), f"backoff.{name}")
            expect(value >= 0, f"backoff.{name}", value, "use 0 or more seconds")
            object.__setattr__(self, name, value)
        for name, least, most in (("factor", 1, 1000), ("jitter", 0, 1)):
            value = getattr(self, name)
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            remedy = f"use a number from {least} to {most}"
            expect(number and least <= value <= most, f"backoff.{name}", value, remedy)

    def delay(self, attempt: int, chance: float) -> float:
        """Seconds to wait after attempt number `attempt` failed; `chance` is from 0 to 1."""
        # Past 2**64 the exponent only overflows; the cap has long been reached.
        steps = min(attempt - 1, 64)
        full = min(seconds(self.first) * self.factor**steps, seconds(self.most))
        return full * (1 - self.jitter * chance)


@suggesting("policy setting")
@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How a receiver treats duplicates, crashes and failures. Immutable; `replace` copies it."""

    lease: Duration = 30
    """How long a claim lasts without renewal: the longest wait after a crash."""
    max_lease: Duration = 3600
    """How long a claim can be renewed at most; after that a hung handler loses it."""
    retention: Duration = 86400
    """How long a completed record is kept, counted from completion; a failed one, from the end of its back-off."""
    in_flight: Literal["wait", "reject"] = "wait"
    """What a duplicate does while the first delivery runs: wait for its result, or be rejected."""
    wait: Duration = 30
    """How long a duplicate waits before `StillInProgressError`."""
    max_waiters: int = 100
    """How many callers of one process may wait for one key."""
    takeover: Literal["retry", "hold"] = "retry"
    """After a crash: run again (at least once), or hold the key for an operator (at most once)."""
    max_attempts: int = 5
    """How often the handler may start, counted at the claim; then the key is parked."""
    backoff: Backoff = Backoff()
    """The delay between a failed attempt and the next."""
    remember: tuple[type[BaseException], ...] = ()
    """Exceptions that are answers: stored, and replayed as `RememberedFailureError`."""
    timeout: Duration | None = None
    """How long a handler may run. A blocking handler then runs in its own thread."""
    outage: Literal["refuse", "run"] = "refuse"
    """Store unreachable: refuse (fail closed), or run unprotected (counted and logged)."""
    max_result_bytes: int = 262_144
    """Larger results are not kept: the work is done, duplicates get `ResultUnavailableError`."""
    retry_horizon: Duration | None = None
    """How long senders may retry; checked against retention."""
    codec: Codec | None = None
    """How results become bytes; None is the typed JSON codec."""
    encryption: Cipher | None = None
    """Encrypts results and remembered failures in the store; None: they are readable there."""
    signatures: SignatureCheck | None = None
    """Requires that every key of a delivery is signed by a trusted party; None: any key is accepted."""

    def __post_init__(self) -> None:
        for name in ("lease", "max_lease", "retention", "wait", "timeout", "retry_horizon"):
            value = getattr(self, name)
            if value is not None or name not in ("timeout", "retry_horizon"):
                object.__setattr__(self, name, seconds(value, name))
        _check(self)

    def __repr__(self) -> str:
        """Only the settings that differ from the default."""
        changed = (
            (name, value)
            for name in _NAMES
            if (value := getattr(self, name)) != getattr(_DEFAULT, name)
        )
        return f"Policy({', '.join(f'{name}={_shown(value)}' for name, value in changed)})"

    def replace(self, **changes: Any) -> Policy:
        """This policy with some settings changed."""
        return replace(self, **changes)


_NAMES = tuple(field.name for field in fields(Policy))


def _check(policy: Policy) -> None:
    lease, max_lease = seconds(policy.lease), seconds(policy.max_lease)
    expect(lease >= 0.05, "lease", policy.lease, "use at least 0.05 seconds")
    expect(
        max_lease >= lease, "max_lease", policy.max_lease, f"it must not be below lease={lease:g}"
    )
    retention = seconds(policy.retention)
    expect(retention > 0, "retention", policy.retention, "use a positive number of seconds")
    expect(seconds(policy.wait) >= 0, "wait", policy.wait, "use 0 or more seconds")
    for name, known in (
        ("in_flight", ("wait", "reject")),
        ("takeover", ("retry", "hold")),
        ("outage", ("refuse", "run")),
    ):
        value = getattr(policy, name)
        expect(value in known, name, value, f"use one of {', '.join(known)}")
    for name in ("max_waiters", "max_attempts", "max_result_bytes"):
        value = getattr(policy, name)
        least = 0 if name == "max_waiters" else 1
        expect(is_whole(value, least), name, value, f"use a whole number, {least} or more")
    expect(isinstance(policy.backoff, Backoff), "backoff", policy.backoff, "use a Backoff(…)")
    check_methods(policy.codec, "codec", ("encode", "decode"))
    check_methods(policy.encryption, "encryption", ("encrypt", "decrypt"))
    check_methods(policy.signatures, "signatures", ("verify",))
    remember: object = policy.remember
    expect(
        isinstance(remember, tuple) and all(map(_is_exception_type, remember)),
        "remember",
        remember,
        "use a tuple of exception types",
    )
    if policy.timeout is not None:
        expect(seconds(policy.timeout) > 0, "timeout", policy.timeout, "use None or more than 0")
    if policy.retry_horizon is not None:
        horizon = seconds(policy.retry_horizon)
        expect(
            retention >= horizon,
            "retention",
            policy.retention,
            f"senders may retry for retry_horizon={horizon:g} seconds, and a repeat that comes "
            "after retention runs again; raise retention or lower retry_horizon",
        )


def _is_exception_type(item: object) -> bool:
    return isinstance(item, type) and issubclass(item, BaseException)


_DEFAULT = Policy()


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({''.join(f'{item.__qualname__}, ' for item in value).strip()})"
    if isinstance(value, float):
        return f"{value:g}"
    # A codec may hold a secret that its repr would show.
    return repr(value) if isinstance(value, (str, int, Backoff)) else type(value).__qualname__
