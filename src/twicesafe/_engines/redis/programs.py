"""What is asked of Redis, as data: one script call per request, and what its reply means.

A program yields a list of commands (one trip) and receives their replies, with errors in the place
of what failed. Answers that need no write are judged here, by `_core.lifecycle` itself; the scripts
decide only what must be decided where the record is.

Looking around (`browse`, `survey`, `sweep`) walks over the prefix with SCAN, never KEYS. A page of
`browse` costs one walk over all records: Redis keeps no order, and an index would be paid for by
every claim.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from ..._core import lifecycle
from ..._core.protocol import (
    Abandon,
    Ack,
    Browse,
    Claimed,
    ClaimRequest,
    Complete,
    Fail,
    Forget,
    History,
    Page,
    Read,
    Release,
    Renew,
    Request,
    Resolve,
    Survey,
    Sweep,
    Verdict,
)
from ..._values.records import AuditEntry, Row, State, Stats, SweepReport, moment
from ...errors import UsageError
from ...stores._base import Program
from ..sql.commands import CAUSES, STATES, number_of, scope_text
from .error_messages import MigratingError
from .record_layout import row_of
from .routing import PlainCommand, ScriptCall
from .scripts import Scripts

__all__ = ["SIMPLE", "RedisPrograms"]

ACKS: Final = (Ack.OK, Ack.LOST, Ack.MISSING, Ack.REFUSED)
MOVED: Final = {2: Verdict.HELD, 3: Verdict.PARKED}
LONGEST: Final = 1 << 47
STEP: Final = 500
"""Keys asked for in one SCAN."""
STEPS: Final = 100
"""SCANs in one bite of a sweep at most, where others' keys are many."""


class RedisPrograms:
    def __init__(self, prefix: str, scripts: Scripts) -> None:
        self.scripts = scripts
        # A hash tag, so that a record, its audit trail and its channel share a slot. The dot keeps
        # the tag from being empty when an id begins with "}".
        self._before = f"{prefix}:{{.".encode()

    def key(self, id: bytes) -> bytes:  # noqa: A002
        return self._before + id + b"}"

    def trail(self, id: bytes) -> bytes:  # noqa: A002
        return self._before + id + b"}a"

    # -- one request ----------------------------------------------------------------------------

    def perform(self, ask: Request) -> Program[Any]:
        if ask.op in SIMPLE:
            (reply,) = yield [self.ask(ask)]
            answer = self.answer(ask, reply)
            if isinstance(answer, MigratingError):
                return (yield from self._act_apart(ask))
            if isinstance(answer, Exception):
                raise answer
            return answer
        return (yield from getattr(self, ask.op)(ask))

    def perform_all(self, asks: Sequence[Request]) -> Program[list[Any]]:
        """Many in one trip; what needs several trips of its own comes after."""
        answers: list[Any] = [None] * len(asks)
        calls: list[ScriptCall] = []
        indexes: list[int] = []
        for index, ask in enumerate(asks):
            if ask.op in SIMPLE:
                try:
                    calls.append(self.ask(ask))
                except Exception as error:
                    answers[index] = error
                else:
                    indexes.append(index)
        if calls:
            replies = yield calls
            for index, reply in zip(indexes, replies, strict=True):
                answers[index] = self.answer(asks[index], reply)
        for index, ask in enumerate(asks):
            if ask.op not in SIMPLE or isinstance(answers[index], MigratingError):
                try:
                    answers[index] = yield from self._alone(ask)
                except Exception as error:
                    answers[index] = error
        return answers

    def _alone(self, ask: Any) -> Program[Any]:
        if ask.op in SIMPLE:
            return (yield from self._act_apart(ask))
        return (yield from getattr(self, ask.op)(ask))

    def _act_apart(self, ask: Any) -> Program[Ack]:
        """An operator's act while its slot moves: the record first, then the trail.

        A crash between the two leaves an act without its entry; nothing else can be had then.
        """
        whole = self.ask(ask)
        (reply,) = yield [ScriptCall(whole.script, whole.keys[:1], whole.args, True, False)]
        if isinstance(reply, list):
            _, at, before, retention = reply
            entry = (at, ask.op, _text(ask.by), _text(ask.why), before, retention)
            (reply,) = yield [ScriptCall(self.scripts.note, whole.keys[1:], entry, True, False)]
        if isinstance(reply, Exception):
            raise reply
        return ACKS[reply]

    def ask(self, ask: Any) -> ScriptCall:
        return _ASKS[ask.op](self, ask)  # type: ignore[no-any-return]

    def answer(self, ask: Any, reply: Any) -> Any:
        """What this reply means; an exception is returned, not raised."""
        if isinstance(reply, Exception):
            return reply
        try:
            if type(ask) is ClaimRequest:
                return self._claimed(ask, reply)
            if type(ask) is Read:
                return self._row(ask.id, reply)
        except Exception as error:
            return error
        return ACKS[reply]

    def _claimed(self, ask: ClaimRequest, reply: list[Any]) -> Claimed:
        kind = reply[0]
        if kind == 1:
            _, fence, attempt, cause = reply
            return Claimed(Verdict.WON, fence, attempt, CAUSES[cause])
        if kind in MOVED:
            return Claimed(MOVED[kind], closes=True)
        answer = lifecycle.look(row_of(ask.key.id, reply[2]), ask, reply[1])
        assert answer is not None, "the script saw that no write is needed"
        return answer

    def _row(self, id_: bytes, reply: list[Any]) -> Row | None:
        if len(reply) == 1:
            return None
        row = row_of(id_, reply[1])
        return None if lifecycle.is_expired(row, reply[0]) else row

    # -- requests as calls ----------------------------------------------------------------------

    def _claim(self, ask: ClaimRequest) -> ScriptCall:
        key = ask.key
        args = (
            ask.owner,
            _ms(ask.lease),
            ask.max_attempts,
            b"1" if ask.hold else b"0",
            key.value.encode(),
            scope_text(key.scope).encode() if key.scope else b"",
        )
        if ask.fingerprint is not None:
            args = (*args, ask.fingerprint)  # type: ignore[assignment]
        return ScriptCall(self.scripts.claim, (self._before + key.id + b"}",), args, True)

    def _renew(self, ask: Renew) -> ScriptCall:
        return ScriptCall(
            self.scripts.renew, (self.key(ask.id),), (ask.owner, ask.fence, _ms(ask.lease))
        )

    def _complete(self, ask: Complete) -> ScriptCall:
        args: tuple[Any, ...] = (
            ask.owner,
            ask.fence,
            _ms(ask.retention),
            number_of(ask.state),
            _text(ask.error),
        )
        if ask.result is not None:
            args = (*args, ask.result)
        return ScriptCall(self.scripts.complete, (self._before + ask.id + b"}",), args, True)

    def _fail(self, ask: Fail) -> ScriptCall:
        args = (
            ask.owner,
            ask.fence,
            _ms(ask.delay),
            ask.max_attempts,
            _ms(ask.retention),
            _text(ask.error),
            b"1" if ask.hold else b"0",
        )
        return ScriptCall(self.scripts.fail, (self.key(ask.id),), args)

    def _abandon(self, ask: Abandon) -> ScriptCall:
        return ScriptCall(
            self.scripts.abandon, (self.key(ask.id),), (ask.owner, _ms(ask.retention))
        )

    def _read(self, ask: Read) -> ScriptCall:
        return ScriptCall(self.scripts.read, (self.key(ask.id),), ())

    def _release(self, ask: Release) -> ScriptCall:
        return self._act(ask, b"1" if ask.force else b"0")

    def _resolve(self, ask: Resolve) -> ScriptCall:
        return self._act(ask) if ask.result is None else self._act(ask, ask.result)

    def _forget(self, ask: Forget) -> ScriptCall:
        return self._act(ask)

    def _act(self, ask: Release | Resolve | Forget, *more: bytes) -> ScriptCall:
        return ScriptCall(
            getattr(self.scripts, ask.op),
            (self.key(ask.id), self.trail(ask.id)),
            (_text(ask.by), _text(ask.why), _ms(ask.retention), *more),
            True,
            False,
        )

    # -- waiting --------------------------------------------------------------------------------

    def awaits(self, id: bytes) -> Program[bool]:  # noqa: A002
        """Is there still something to wait for?"""
        (reply,) = yield [ScriptCall(self.scripts.awaits, (self.key(id),), ())]
        if isinstance(reply, Exception):
            raise reply
        return bool(reply)

    # -- looking around -------------------------------------------------------------------------

    def history(self, ask: History) -> Program[list[AuditEntry]]:
        key = self.trail(ask.id)
        (reply,) = yield [PlainCommand((b"LRANGE", key, 0, -1), key)]
        if isinstance(reply, Exception):
            raise reply
        entries = (msgspec.msgpack.decode(entry) for entry in reply)
        return [
            AuditEntry(
                id=ask.id, at=moment(at), action=what, by=by, why=why, state_before=STATES[state]
            )
            for at, what, by, why, state in entries
        ]

    def _scan(self, node: int, cursor: int, count: int) -> Program[tuple[int, list[bytes]] | None]:
        """One step of a walk: where to go on (0: the end) and the ids; None: no such node."""
        pattern = self._before + b"*}"
        (reply,) = yield [
            PlainCommand((b"SCAN", cursor, b"MATCH", pattern, b"COUNT", count), node=node)
        ]
        if isinstance(reply, Exception):
            raise reply
        if reply is None:
            return None
        start, length = len(self._before), len(self._before) + 33
        ids = [key[start:-1] for key in reply[1] if len(key) == length]
        return int(reply[0]), ids

    def survey(self, ask: Survey) -> Program[Stats]:
        by_state: dict[State, int] = {}
        stuck = 0
        oldest: int | None = None
        seen: set[bytes] = set()
        walk = _Walk(self)
        while (step := (yield from walk.step())) is not None:
            for now, row in step:
                if row.id in seen:
                    continue
                seen.add(row.id)
                by_state[row.state] = by_state.get(row.state, 0) + 1
                if row.state is State.IN_PROGRESS:
                    stuck += row.lease_until <= now
                    oldest = row.changed_at if oldest is None else min(oldest, row.changed_at)
        return Stats(
            by_state=by_state,
            stuck=stuck,
            expired=0,  # what is over is not counted: it disappears by itself
            oldest_in_progress=None if oldest is None else moment(oldest),
        )

    def browse(self, ask: Browse) -> Program[Page]:
        before = _place(ask.after)
        newest: dict[tuple[int, bytes], Row] = {}
        walk = _Walk(self)
        while (step := (yield from walk.step())) is not None:
            for _, row in step:
                place = (row.created_at, row.id)
                if (
                    (before is None or place < before)
                    and (ask.state is None or row.state is ask.state)
                    and row.scope[: len(ask.scope)] == ask.scope
                ):
                    newest[place] = row
            if len(newest) > 2 * (ask.limit + 1):
                newest = dict(heapq.nlargest(ask.limit + 1, newest.items(), key=_by_place))
        shown = heapq.nlargest(ask.limit + 1, newest.items(), key=_by_place)
        page = [row for _, row in shown[: ask.limit]]
        after = f"{page[-1].created_at}.{page[-1].id.hex()}" if len(shown) > ask.limit else ""
        whole = {row.id: row for _, row in _rows(*(yield from self._read_all(page)))}
        return Page([whole.get(row.id, row) for row in page], after)

    def _read_all(self, page: list[Row]) -> Program[tuple[list[bytes], list[Any]]]:
        """What is shown is read in full; what is only passed by is not."""
        ids = [row.id for row in page if row.result is not None]
        if not ids:
            return [], []
        return ids, (yield [ScriptCall(self.scripts.read, (self.key(id_),), ()) for id_ in ids])

    def sweep(self, ask: Sweep) -> Program[tuple[SweepReport, str]]:
        """One bite of what a TTL should have removed by now. ``after``: node, cursor, skip."""
        node, cursor, skip = (int(part) for part in (ask.after or "0.0.0").split("."))
        removed = examined = 0
        after = ""
        for _ in range(STEPS):
            found = yield from self._scan(node, cursor, STEP)
            if found is None:
                after = ""
                break
            following, ids = found
            bite = ids[skip : skip + ask.limit - examined]
            due, left = bite, ask.most - removed
            if len(bite) > left:  # look before removing too many
                replies = yield [self._swept(id_, b"look") for id_ in bite]
                due = [id_ for id_, reply in zip(bite, replies, strict=True) if reply == 1]
            gone = 0
            if due[:left]:
                swept = yield [self._swept(id_) for id_ in due[:left]]
                gone = sum(reply == 1 for reply in swept)
            examined += len(bite)
            removed += gone
            if len(due) > left:
                after = f"{node}.{cursor}.{skip}"
                break
            if skip + len(bite) < len(ids):
                after = f"{node}.{cursor}.{skip + len(bite) - gone}"
                break
            node, cursor, skip = (node, following, 0) if following else (node + 1, 0, 0)
            after = f"{node}.{cursor}.0"
        return SweepReport(removed=removed, examined=examined, more=bool(after)), after

    def _swept(self, id_: bytes, how: bytes = b"") -> ScriptCall:
        return ScriptCall(self.scripts.sweep, (self.key(id_), self.trail(id_)), (how,))


class _Walk:
    """All unexpired rows without their results, a step at a time."""

    def __init__(self, programs: RedisPrograms) -> None:
        self._programs = programs
        self._node = self._cursor = 0

    def step(self) -> Program[list[tuple[int, Row]] | None]:
        programs = self._programs
        found = yield from programs._scan(self._node, self._cursor, STEP)
        if found is None:
            return None
        self._cursor, ids = found
        if not self._cursor:
            self._node += 1
        if not ids:
            return []
        replies = yield [ScriptCall(programs.scripts.peek, (programs.key(id_),), ()) for id_ in ids]
        return list(_rows(ids, replies))


def _rows(ids: list[bytes], replies: list[Any]) -> Iterator[tuple[int, Row]]:
    for id_, reply in zip(ids, replies, strict=True):
        if isinstance(reply, Exception):
            raise reply
        if len(reply) == 1:
            continue
        row = row_of(id_, reply[1])
        if not lifecycle.is_expired(row, reply[0]):
            yield reply[0], row


def _by_place(item: tuple[tuple[int, bytes], Row]) -> tuple[int, bytes]:
    return item[0]


def _place(after: str) -> tuple[int, bytes] | None:
    if not after:
        return None
    created, _, id_ = after.partition(".")
    return int(created), bytes.fromhex(id_)


def _ms(duration: Any) -> int:
    if not isinstance(duration, int) or not 0 <= duration < LONGEST:
        raise UsageError(f"a duration of {duration!r} ms is not valid")
    return duration


def _text(text: str) -> bytes:
    """For operators' eyes: never the reason that a write fails."""
    return text[:4000].encode(errors="replace")


_ASKS: Final[dict[str, Any]] = {
    "claim": RedisPrograms._claim,
    "renew": RedisPrograms._renew,
    "complete": RedisPrograms._complete,
    "fail": RedisPrograms._fail,
    "abandon": RedisPrograms._abandon,
    "read": RedisPrograms._read,
    "release": RedisPrograms._release,
    "resolve": RedisPrograms._resolve,
    "forget": RedisPrograms._forget,
}
SIMPLE: Final = frozenset(_ASKS)
"""Requests that are one call."""
