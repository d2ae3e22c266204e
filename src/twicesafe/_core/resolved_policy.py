"""A policy converted once into the numbers that every delivery needs."""

from __future__ import annotations

from .._values.cipher import Cipher
from .._values.codecs import DEFAULT_CODEC, Codec
from .._values.context import MARGIN
from .._values.policy import Policy
from .._values.settings import seconds

__all__ = ["ResolvedPolicy"]


class ResolvedPolicy:
    """A policy in the units of the protocol; made once and shared by all its calls."""

    __slots__ = (
        "backoff",
        "cipher",
        "codec",
        "hold",
        "lease",
        "lease_ms",
        "max_attempts",
        "max_lease",
        "max_result_bytes",
        "max_waiters",
        "outage_runs",
        "policy",
        "rejects",
        "remember",
        "retention_ms",
        "timeout",
        "usable",
        "wait",
    )

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.lease = seconds(policy.lease)
        self.lease_ms = round(self.lease * 1000)
        self.usable = self.lease * (1 - MARGIN)
        self.max_lease = seconds(policy.max_lease)
        self.retention_ms = max(1, round(seconds(policy.retention) * 1000))
        self.wait = seconds(policy.wait)
        self.rejects = policy.in_flight == "reject" or self.wait == 0
        self.max_waiters = policy.max_waiters
        self.hold = policy.takeover == "hold"
        self.max_attempts = policy.max_attempts
        self.backoff = policy.backoff
        self.remember = policy.remember
        self.timeout = None if policy.timeout is None else seconds(policy.timeout)
        self.outage_runs = policy.outage == "run"
        self.max_result_bytes = policy.max_result_bytes
        self.codec: Codec = policy.codec or DEFAULT_CODEC
        self.cipher: Cipher | None = policy.encryption
