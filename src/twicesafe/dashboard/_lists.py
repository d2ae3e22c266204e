"""What the pages of the outbox, the dead letters and the audit show. Pure; see `_pages`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from .._core.outbox.requests import Depth, ParkedLane
from .._edges.readable import shortened, visible
from .._values.keys import Key
from .._values.quantities import counted, duration_text
from .._values.records import AuditEntry, State
from ..consumers import Letter
from ._access import Access
from ._pages import When

__all__ = [
    "AuditRow",
    "LaneRow",
    "LetterRow",
    "audit_rows",
    "depth_facts",
    "lane_rows",
    "letter_rows",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneRow:
    lane: str
    topic: str
    key: str
    waiting: str
    attempts: int
    error: str
    since: When
    parked_at: int
    """The same in milliseconds: an action is about this parking."""


def lane_rows(lanes: Sequence[ParkedLane], access: Access, now: datetime) -> tuple[LaneRow, ...]:
    return tuple(
        LaneRow(
            lane=lane.lane,
            topic=shortened(lane.topic, 40),
            key=shortened(lane.key or "", 40) if access.show_keys else "",
            waiting=counted(lane.waiting, "message"),
            attempts=lane.attempts,
            error=visible(lane.error if access.show_keys else _class_of(lane))[:200],
            since=When.of(lane.since, now),
            parked_at=round(lane.since.timestamp() * 1000),
        )
        for lane in lanes
    )


def _class_of(lane: ParkedLane) -> str:
    """The class of the error; its text may contain a part of the message."""
    return lane.error.partition(":")[0]


def depth_facts(depth: Depth) -> tuple[tuple[str, str], ...]:
    return (
        ("Pending", f"{depth.pending:,}"),
        ("Oldest", duration_text(depth.oldest_age) if depth.pending else "–"),
        ("Parked", f"{depth.parked:,} in {counted(depth.parked_lanes, 'lane')}"),
        ("Backing off", counted(depth.resting_lanes, "lane")),
        ("Relays alive", f"{depth.relays:,}"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterRow:
    id: str
    digits: str
    """Stands for the id in forms."""
    topic: str
    error: str
    reason: str
    consumer: str
    key: str
    key_path: str
    body: str


def letter_rows(letters: Sequence[Letter], access: Access) -> tuple[LetterRow, ...]:
    def named(key: Key | None) -> str:
        return "" if key is None else key.short

    return tuple(
        LetterRow(
            digits=one.digits,
            id=shortened(one.id, 48) if access.show_keys else _hidden_id(one),
            topic=shortened(one.topic, 40),
            error=visible(one.error)[:120],
            reason=visible(one.reason)[:300] if access.show_keys else "",
            consumer=shortened(one.consumer, 40),
            key=named(one.key),
            key_path="" if one.key is None else f"keys/{one.key.id.hex()}",
            body=visible(one.message.body[:2000].decode(errors="backslashreplace"))
            if access.show_keys
            else "",
        )
        for one in letters
    )


def _hidden_id(letter: Letter) -> str:
    return "hidden" if letter.message.id else shortened(letter.message.position, 40)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    when: When
    by: str
    action: str
    short: str
    key: str
    path: str
    was: State
    why: str


def audit_rows(
    entries: Sequence[AuditEntry], access: Access, now: datetime
) -> tuple[AuditRow, ...]:
    return tuple(
        AuditRow(
            when=When.of(entry.at, now),
            by=visible(entry.by),
            action=entry.action,
            short=entry.id[:4].hex(),
            key=_subject(entry) if access.show_keys or entry.lane else "",
            path=f"keys/{entry.id.hex()}" if entry.lane is None else "outbox",
            was=entry.state_before,
            why=visible(entry.why),
        )
        for entry in entries
    )


def _subject(entry: AuditEntry) -> str:
    return shortened(entry.value, 40) if entry.lane is None else "lane"
