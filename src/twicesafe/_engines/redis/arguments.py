"""The arguments of scripts, and what their answers are called."""

from __future__ import annotations

from typing import Any, Final

from ..._core.protocol import Ack, Fail, Forget, Release, Resolve, Verdict
from ...errors import UsageError

__all__ = ["ACKS", "MOVED", "fail_values", "fence_of", "milliseconds", "operator_text"]

ACKS: Final = (Ack.OK, Ack.LOST, Ack.MISSING, Ack.REFUSED)
MOVED: Final = {2: Verdict.HELD, 3: Verdict.PARKED}
LONGEST: Final = 1 << 47


def milliseconds(duration: Any) -> int:
    if not isinstance(duration, int) or not 0 <= duration < LONGEST:
        raise UsageError(f"a duration of {duration!r} ms is not valid")
    return duration


def fence_of(ask: Release | Resolve | Forget) -> bytes:
    return b"" if ask.fence is None else b"%d" % ask.fence


def operator_text(text: str) -> bytes:
    """Text that only operators read. It is cut and repaired, so that it never fails a write."""
    return text[:4000].encode(errors="replace")


def fail_values(ask: Fail) -> tuple[Any, ...]:
    return (
        ask.owner,
        ask.fence,
        milliseconds(ask.delay),
        ask.max_attempts,
        milliseconds(ask.retention),
        operator_text(ask.error),
        b"1" if ask.hold else b"0",
    )
