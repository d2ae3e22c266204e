"""What the page of relays and consumers shows. Pure; see `_pages`.

Relays write heartbeats into the store. Consumers write none: what is shown of them is what their broker
knows, asked for when the page is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from .._core.consuming.source import Member, SourceStatus
from .._core.outbox.requests import Depth, Relays, RelayStatus
from .._edges.readable import shortened, visible
from .._values.quantities import counted, duration_text
from ._backend import ConsumerStatus
from ._pages import When

__all__ = ["ConsumerRow", "RelayRow", "consumer_rows", "relay_facts", "relay_rows"]

NOT_SAID = "–"


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayRow:
    id: str
    kind: str
    """How its state is drawn."""
    state: str
    until: When | None
    """When its lease ended; None: it is alive."""
    slots: int
    pending: str
    oldest: str


def relay_rows(found: Relays, now: datetime) -> tuple[RelayRow, ...]:
    return tuple(_relay(one, now) for one in found.relays)


def _relay(one: RelayStatus, now: datetime) -> RelayRow:
    alive = "idle" if one.is_idle else "active"
    return RelayRow(
        id=one.id[:8],
        kind="completed" if one.is_alive else "held",
        state=alive if one.is_alive else "gone",
        until=None if one.is_alive else When.of(one.until, now),
        slots=one.slots,
        pending=f"{one.pending:,}",
        oldest=duration_text(one.oldest_age) if one.pending else NOT_SAID,
    )


def relay_facts(found: Relays, depth: Depth) -> tuple[tuple[str, str], ...]:
    alive = sum(one.is_alive for one in found.relays)
    return (
        ("Relays alive", f"{alive:,}"),
        ("Pending", f"{depth.pending:,}"),
        ("Oldest", duration_text(depth.oldest_age) if depth.pending else NOT_SAID),
        ("Without a relay", counted(found.unserved, "message")),
        ("Parked lanes", f"{depth.parked_lanes:,}"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerRow:
    name: str
    place: str
    problem: str
    facts: tuple[tuple[str, str], ...]
    members: tuple[tuple[str, str, str], ...]
    """Name, last seen, messages that it has."""


def consumer_rows(asked: tuple[ConsumerStatus, ...]) -> tuple[ConsumerRow, ...]:
    return tuple(
        ConsumerRow(
            name=shortened(one.name, 60),
            place=visible(one.place),
            problem=visible(one.problem),
            facts=() if one.status is None else _facts(one.status),
            members=() if one.status is None else tuple(map(_member, one.status.members)),
        )
        for one in asked
    )


def _facts(found: SourceStatus) -> tuple[tuple[str, str], ...]:
    active = found.active if found.active is not None else _last_seen(found)
    return (
        ("Waiting", _number(found.waiting)),
        ("Unacknowledged", _number(found.unsettled)),
        ("Processes", _number(found.count)),
        ("Last seen", NOT_SAID if active is None else f"{duration_text(active)} ago"),
    )


def _last_seen(found: SourceStatus) -> float | None:
    return min((one.idle for one in found.members if one.idle is not None), default=None)


def _member(one: Member) -> tuple[str, str, str]:
    seen = NOT_SAID if one.idle is None else f"{duration_text(one.idle)} ago"
    return shortened(one.name, 60), seen, _number(one.unsettled)


def _number(count: int | None) -> str:
    return NOT_SAID if count is None else f"{count:,}"
