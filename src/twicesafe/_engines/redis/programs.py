"""The programs of Redis: one script call per request, and what its reply means.

A program yields a list of commands (one round trip) and receives their replies; a failed command's
error is in its place. Answers that need no write are decided here, by `_core.lifecycle`; the scripts
decide only what must be atomic with the record. Programs that scan all keys are in `key_scans`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ..._core import lifecycle
from ..._core.protocol import (
    Abandon,
    Ack,
    Adopt,
    Claimed,
    ClaimRequest,
    Complete,
    Discard,
    Fail,
    Forget,
    RaiseFences,
    Read,
    Release,
    Renew,
    Request,
    Resolve,
    Rewrite,
    Verdict,
)
from ..._values.records import Row
from ...stores._base import Program
from ..sql.commands import CAUSES, number_of, scope_text
from .arguments import ACKS, MOVED, fail_values, fence_of, milliseconds, only_if, operator_text
from .error_messages import MigratingError
from .record_layout import row_of
from .routed_commands import ScriptCall
from .run_programs import RedisRuns
from .scan_questions import QUESTIONS
from .scripts import Scripts

__all__ = ["SIMPLE", "RedisPrograms"]


class RedisPrograms(RedisRuns):
    def __init__(self, prefix: str, scripts: Scripts, apart: bool = False) -> None:
        super().__init__(prefix, scripts)
        self.apart = apart

    # -- one request ----------------------------------------------------------------------------

    def perform(self, ask: Request) -> Program[Any]:
        if ask.op in SIMPLE:
            (reply,) = yield [self.ask(ask)]
            answer = self.answer(ask, reply)
            if isinstance(answer, MigratingError) and ask.op in ACTS:
                return (yield from self._act_in_two_calls(ask))
            if isinstance(answer, Exception):
                raise answer
            return answer
        return (yield from getattr(self, ask.op)(ask))

    def perform_all(self, asks: Sequence[Request]) -> Program[list[Any]]:
        """Many in one round trip; requests that need several round trips follow one by one."""
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
        asked = {index: ask for index, ask in enumerate(asks) if ask.op in QUESTIONS}
        if asked:
            try:
                found = yield from self.search(list(asked.values()))
            except Exception as error:
                found = [error] * len(asked)
            for index, answer in zip(asked, found, strict=True):
                answers[index] = answer
        for index, ask in enumerate(asks):
            if (ask.op not in SIMPLE and index not in asked) or (
                isinstance(answers[index], MigratingError) and ask.op in ACTS
            ):
                try:
                    answers[index] = yield from self._alone(ask)
                except Exception as error:
                    answers[index] = error
        return answers

    def _alone(self, ask: Any) -> Program[Any]:
        if ask.op in SIMPLE:
            return (yield from self._act_in_two_calls(ask))
        return (yield from getattr(self, ask.op)(ask))

    def _act_in_two_calls(self, ask: Any) -> Program[Ack]:
        """An operator's action while its slot moves: first the record, then the audit entry.

        A crash between the two leaves an action without an entry. While the slot moves, Redis offers
        nothing better.
        """
        whole = self.ask(ask)
        (reply,) = yield [ScriptCall(whole.script, whole.keys[:1], whole.args, True, False)]
        if isinstance(reply, list):
            _, at, before, retention = reply
            entry = (at, ask.op, operator_text(ask.by), operator_text(ask.why), before, retention)
            (reply,) = yield [ScriptCall(self.scripts.audit, whole.keys[1:], entry, True, False)]
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
            milliseconds(ask.lease),
            ask.max_attempts,
            self.how[ask.hold],
            key.value.encode(),
            scope_text(key.scope).encode() if key.scope else b"",
        )
        if ask.fingerprint is not None:
            args = (*args, ask.fingerprint)  # type: ignore[assignment]
        return ScriptCall(self.scripts.claim, (self.before + key.id + b"}",), args, True)

    def _renew(self, ask: Renew) -> ScriptCall:
        return ScriptCall(
            self.scripts.renew, (self.key(ask.id),), (ask.owner, ask.fence, milliseconds(ask.lease))
        )

    def _complete(self, ask: Complete) -> ScriptCall:
        args: tuple[Any, ...] = (
            ask.owner,
            ask.fence,
            milliseconds(ask.retention),
            number_of(ask.state),
            operator_text(ask.error),
        )
        if ask.result is not None:
            args = (*args, ask.result)
        return ScriptCall(self.scripts.complete, (self.before + ask.id + b"}",), args, True)

    def _fail(self, ask: Fail) -> ScriptCall:
        return ScriptCall(self.scripts.fail, (self.key(ask.id),), fail_values(ask))

    def _abandon(self, ask: Abandon) -> ScriptCall:
        return ScriptCall(
            self.scripts.abandon, (self.key(ask.id),), (ask.owner, milliseconds(ask.retention))
        )

    def _read(self, ask: Read) -> ScriptCall:
        return ScriptCall(self.scripts.read, (self.key(ask.id),), ())

    def _release(self, ask: Release) -> ScriptCall:
        return self._act(ask, *only_if(ask), b"1" if ask.force else b"0")

    def _resolve(self, ask: Resolve) -> ScriptCall:
        result = () if ask.result is None else (ask.result,)
        return self._act(ask, *only_if(ask), *result)

    def _forget(self, ask: Forget) -> ScriptCall:
        return self._act(ask, fence_of(ask))

    def _discard(self, ask: Discard) -> ScriptCall:
        return self._act(ask)

    def _act(self, ask: Release | Resolve | Forget | Discard, *more: bytes) -> ScriptCall:
        return ScriptCall(
            getattr(self.scripts, ask.op),
            (self.key(ask.id), self.trail(ask.id)),
            (operator_text(ask.by), operator_text(ask.why), milliseconds(ask.retention), *more),
            True,
            False,
        )

    def _rewrite(self, ask: Rewrite) -> ScriptCall:
        args = (number_of(ask.state), ask.before, ask.after)
        return ScriptCall(self.scripts.rewrite, (self.key(ask.id),), args, True)

    def _adopt(self, ask: Adopt) -> ScriptCall:
        row = ask.row
        numbers = (row.attempt, row.fence, row.created_at, row.changed_at, row.lease_until)
        args: tuple[Any, ...] = (
            *(b"" if ask.over is None else ask.over, number_of(row.state), number_of(row.cause)),
            *(b"1" if row.hold else b"0", *numbers, row.expires_at, row.owner),
            *(row.value.encode(), scope_text(row.scope).encode() if row.scope else b""),
            *(operator_text(row.error), row.fingerprint or b""),
        )
        if row.result is not None:
            args = (*args, row.result)
        return ScriptCall(self.scripts.adopt, (self.key(ask.id),), args, True)

    def raise_fences(self, ask: RaiseFences) -> Program[Ack]:
        """A fence is the microsecond of its claim."""
        (reply,) = yield [ScriptCall(self.scripts.read, (self.key(ask.id),), ())]
        if isinstance(reply, Exception):
            raise reply
        return Ack.OK if reply[0] * 1000 > ask.above else Ack.REFUSED

    # -- waiting --------------------------------------------------------------------------------

    def awaits(self, id: bytes) -> Program[bool]:  # noqa: A002
        """Whether the record is still in progress, so that there is something to wait for."""
        (reply,) = yield [ScriptCall(self.scripts.awaits, (self.key(id),), ())]
        if isinstance(reply, Exception):
            raise reply
        return bool(reply)


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
    "discard": RedisPrograms._discard,
    "rewrite": RedisPrograms._rewrite,
    "adopt": RedisPrograms._adopt,
    "record_step": RedisRuns._record_step,
    "rewrite_run": RedisRuns._rewrite_run,
}
SIMPLE: Final = frozenset(_ASKS)
"""Requests that are one call."""

ACTS: Final = frozenset({"release", "resolve", "forget", "discard"})
"""Of these, an operator's, the audit entry may follow in a second call."""
