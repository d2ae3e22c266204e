"""The messages of a schedule: what each is, and what has become of it so far."""

from __future__ import annotations

from typing import Any, Final

from twicesafe import Key, Policy
from twicesafe._core.consuming.message import Message
from twicesafe._core.resolved_policy import ResolvedPolicy
from twicesafe._values.context import ActiveClaim
from twicesafe._values.policy import Backoff
from twicesafe._values.records import Cause

from .plan import LEASE, Post

__all__ = [
    "DEAD",
    "LANES",
    "LANE_POLICY",
    "STARTS",
    "Copy",
    "Start",
    "Work",
    "dead_policy",
    "policy_of",
]

LANES: Final = ("lab", "lanes")
DEAD: Final = ("lab", "dead")
STARTS: Final = ("lab", "starts")
TOPIC: Final = "orders"
FOREVER: Final = 1_000_000_000


def _policy(attempts: int) -> ResolvedPolicy:
    backoff = Backoff(first=0.1, most=0.6)
    return ResolvedPolicy(
        Policy(lease=LEASE, max_attempts=attempts, backoff=backoff, in_flight="reject")
    )


_POLICIES: Final = {attempts: _policy(attempts) for attempts in (1, 2, 3, FOREVER)}
LANE_POLICY: Final = _policy(1)


def policy_of(attempts: int) -> ResolvedPolicy:
    return _POLICIES[attempts]


def dead_policy() -> ResolvedPolicy:
    return _POLICIES[FOREVER]


class Copy:
    """One sending of a message: it has a place at the broker."""

    __slots__ = (
        "dead_key",
        "deliveries",
        "message",
        "partition",
        "position",
        "published",
        "settled",
        "unsure",
        "work",
    )

    def __init__(self, work: Work, position: str, partition: int) -> None:
        self.work = work
        self.position = position
        self.partition = partition
        key = None if work.post.key < 0 else str(work.post.key)
        self.message = Message(work.name, TOPIC, work.body, key, {}, None, position)
        self.dead_key = Key(position, scope=DEAD)
        self.published = 0
        """How often it was published to the dead letters."""
        self.unsure = 0
        """How often a publication may have ended without its record."""
        self.settled = False
        self.deliveries = 0
        """How often a queue has delivered it."""


class Start:
    """One start of a handler."""

    __slots__ = (
        "claim", "committing", "copy", "dead", "died", "dies_for", "ended", "failed", "how", "left",
        "presumed", "process", "receipt", "recorded", "renewal", "suspect", "was_done", "work",
    )  # fmt: skip

    def __init__(self, process: Any, receipt: Any, claim: ActiveClaim | None, dead: bool) -> None:
        self.process = process
        self.receipt = receipt
        self.copy: Copy = receipt.copy
        self.work = self.copy.work
        self.claim = claim
        self.dead = dead
        """It publishes the message to the dead letters."""
        self.was_done = self.work.done
        """When it started. The record of a worker that died may arrive while the letter is on its way."""
        self.suspect = claim is not None and claim.cause is Cause.LEASE_EXPIRED
        self.committing = False
        """Transaction mode: its COMMIT is under way."""
        self.left = False
        """Transaction mode: its transaction has ended."""
        self.ended = False
        self.recorded = False
        self.renewal = ""
        """Asked, or granted: the renewal of its claim after it has ended."""
        self.presumed = False
        """Its end was sent as if that renewal had been granted."""
        self.failed = False
        self.how = ""
        self.died = False
        self.dies_for: Work | None = None
        """Its process was killed by this message's handler."""

    def is_over(self) -> bool:
        """It has ended, or its worker has nothing to say any more."""
        claim = self.claim
        late = claim is not None and (self.process.clock() >= claim.expires or claim.lost)
        return self.ended or self.died or self.left or late


class Work:
    """A message with its id, whatever the number of its copies."""

    __slots__ = (
        "body", "copies", "done", "effects", "failed_until", "failures", "fingerprint", "key", "late",
        "lost_claims", "mark", "name", "number", "post", "starts",
    )  # fmt: skip

    def __init__(self, post: Post, number: int) -> None:
        self.post = post
        self.number = number
        self.name = f"m{number}"
        self.body = self.name.encode()
        self.fingerprint = self.body.ljust(32, b".")
        self.key = Key(self.name, scope=("lab",))
        self.mark = Key(self.name, scope=STARTS)
        """Transaction mode: what counts its starts."""
        self.failures = 0
        """Transaction mode: failed attempts that its record counts."""
        self.effects = 0
        """Transaction mode: how often its handler's work was committed."""
        self.copies: list[Copy] = []
        self.starts: list[Start] = []
        self.done = False
        self.late = False
        """Its worker completed it after another one had given up on it."""
        self.lost_claims = 0
        """Claims that were counted and led to no start: their worker died in between, or was cut off."""
        self.failed_until = 0.0
        """When the back-off of its last recorded failure is over."""

    def end_of(self, start: int) -> str:
        ends = self.post.ends
        return ends[min(start, len(ends)) - 1]

    def counted(self, transactions: bool = False) -> tuple[int, int]:
        """Attempts that are its own, and deaths for a neighbour's sake."""
        counted = self.starts
        failures = sum(one.failed for one in counted)
        if transactions:  # a failure counts in the record, and a mark that was not given back
            counted = [one for one in counted if one.claim is not None and not one.recorded]
        neighbours = sum(one.dies_for not in (None, self) for one in counted)
        own = len(counted) + self.lost_claims - neighbours + failures * transactions
        return own, min(neighbours, 1 + failures)
