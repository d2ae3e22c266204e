"""Durable runs on Redis: one script per request decides on the record and its steps together.

The steps of a run are one hash in the slot of its record. What the completer looks at is in `due_index`.
"""

from __future__ import annotations

from typing import Any

from ..._core import lifecycle
from ..._core.durable import run_lifecycle
from ..._core.durable.run_requests import (
    FOREVER,
    FailRun,
    LoadRun,
    RecordStep,
    Restart,
    RewriteRun,
    Run,
    Signal,
    StartRun,
    Submit,
    Suspend,
)
from ..._core.protocol import Ack, Claimed, Verdict
from ...errors import ConfigurationError
from ...stores._base import Program
from ..sql.commands import CAUSES, scope_text
from ..sql.step_rows import NUMBER_OF_KIND, NUMBER_OF_STATE
from .arguments import ACKS, MOVED, fail_values, milliseconds, only_if, operator_text
from .due_index import DueIndex
from .record_layout import row_of
from .routed_commands import PlainCommand, ScriptCall
from .run_layout import steps_of

__all__ = ["RedisRuns"]


class RedisRuns(DueIndex):
    """A base class of `RedisPrograms`."""

    def start_run(self, ask: StartRun) -> Program[Claimed]:
        key, function = ask.key, ask.function.encode()
        args = (
            *(ask.owner, milliseconds(ask.lease), 2 * ask.max_attempts, self.how[ask.hold]),
            *(key.value.encode(), scope_text(key.scope).encode(), ask.fingerprint or b""),
            *(int(ask.completes), function, ask.arguments, ask.max_attempts),
        )
        reply = yield from self._indexed(
            key.id,
            "start_run",
            self._run_keys(key.id),
            args,
            lambda reply: ask.lease if reply[0] == 1 else None,
            function=function,
        )
        if reply[0] == 1:
            _, fence, attempt, cause, now, fields = reply
            steps = steps_of(key.id, fields)
            return Claimed(Verdict.WON, fence, attempt, CAUSES[cause], steps=steps, now=now)
        if reply[0] in MOVED:
            return Claimed(MOVED[reply[0]], closes=True)
        answer = lifecycle.look(row_of(key.id, reply[2]), ask, reply[1])
        assert answer is not None, "the script saw that no write is needed"
        return answer

    def submit_run(self, ask: Submit) -> Program[Claimed]:
        key, function = ask.key, ask.function.encode()
        args = (
            *(ask.owner, key.value.encode(), scope_text(key.scope).encode()),
            *(ask.fingerprint or b"", int(ask.completes), function, ask.arguments),
        )
        reply = yield from self._indexed(
            key.id,
            "submit_run",
            self._run_keys(key.id),
            args,
            lambda reply: 0 if reply[0] == 1 else None,
            function=function,
        )
        if reply[0] == 1:
            return Claimed(Verdict.WON, reply[1])
        return run_lifecycle.submit(row_of(key.id, reply[2]), ask, reply[1])[0]

    def _record_step(self, ask: RecordStep) -> ScriptCall:
        args: tuple[Any, ...] = (
            *(ask.owner, ask.fence, ask.name.encode(), NUMBER_OF_KIND[ask.kind]),
            *(NUMBER_OF_STATE[ask.state], ask.attempt, ask.position, int(ask.undo)),
            *(milliseconds(ask.delay), ask.fingerprint),
        )
        if ask.result is not None:
            args = (*args, ask.result)
        return ScriptCall(self.scripts.record_step, self._run_keys(ask.id), args, True)

    def _rewrite_run(self, ask: RewriteRun) -> ScriptCall:
        args = (ask.step.encode(), ask.before, ask.after)
        return ScriptCall(self.scripts.rewrite_run, self._run_keys(ask.id), args, True)

    def suspend(self, ask: Suspend) -> Program[Ack]:
        args = (ask.owner, ask.fence, milliseconds(ask.delay))
        waits = tuple(name.encode() for name in ask.waits)
        keys = self._run_keys(ask.id)
        reply = yield from self._indexed(
            ask.id, "suspend", keys, args, _delay, more=waits
        )  # fmt: skip
        return ACKS[reply[1]]

    def fail_run(self, ask: FailRun) -> Program[Ack]:
        keys = self._run_keys(ask.id)
        reply = yield from self._indexed(
            ask.id, "fail_run", keys, fail_values(ask), _delay
        )  # fmt: skip
        return ACKS[reply[1]]

    def restart(self, ask: Restart) -> Program[Ack]:
        text = operator_text(ask.by), operator_text(ask.why)
        force = b"1" if ask.force else b"0"
        args = (*text, milliseconds(ask.retention), *only_if(ask), force, ask.op)
        record, run = self._run_keys(ask.id)
        reply = yield from self._indexed(
            ask.id,
            "restart",
            (record, self.trail(ask.id), run),
            args,
            _delay,
            repeatable=False,
        )
        return ACKS[reply[1]]

    def signal(self, ask: Signal) -> Program[bool]:
        who, why = operator_text(ask.by), operator_text(ask.why)
        args = (ask.name.encode(), ask.result, milliseconds(ask.retention))
        trail = (self.trail(ask.id),) if ask.by else ()
        reply = yield from self._indexed(
            ask.id,
            "signal",
            (*self._run_keys(ask.id), *trail),
            (*args, who, why, milliseconds(FOREVER)),
            lambda reply: 0 if len(reply) == 2 else None,
        )
        return reply[0] == 1  # type: ignore[no-any-return]

    def load_run(self, ask: LoadRun) -> Program[Run | None]:
        key = self.run_key(ask.id)
        (reply,) = yield [PlainCommand((b"HGETALL", key), key)]
        if isinstance(reply, ConfigurationError):
            return None  # a user that may not read runs has none: it could not have started one
        if isinstance(reply, Exception):
            raise reply
        if not reply:
            return None
        if isinstance(reply, dict):
            reply = [part for pair in reply.items() for part in pair]
        fields = dict(zip(reply[::2], reply[1::2], strict=True))
        return Run(fields[b"f"].decode(), fields[b"a"], steps_of(ask.id, reply))

    def _run_keys(self, id_: bytes) -> tuple[bytes, bytes]:
        return self.key(id_), self.run_key(id_)


def _delay(reply: Any) -> int | None:
    """When to look, from {1, OK, delay}."""
    return reply[2] if reply[0] == 1 else None
