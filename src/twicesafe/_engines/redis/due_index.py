"""When the completer looks at which run: a few sorted sets, which work in a Cluster too.

    <prefix>:{due.N}    id → when to look, for the runs of one of 16 parts
    <prefix>:{due.N}f   id → the run's function, so that a completer passes over those of others

On one server, the script that writes a run writes its entry. In a Cluster they are in different slots,
so there are two writes, and a crash between them must not lose a run:

    1  mark   a separate entry, ``id?``: look at this run in `MARK` ms in any case
    2  the write of the run; its script refuses it if it comes later than `LATEST` ms after the mark
    3  settle the entry, if it is due before the mark; and remove the mark

A mark is looked at only when its write has happened or never will. If a process dies after 1 or 2, that
look compares the record and puts the entry right. `MARK` and `LATEST` leave room for clocks of nodes
that differ by some seconds. A look moves an entry only if it still has the score that was read.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, NamedTuple

from ..._core.durable import run_lifecycle
from ..._core.durable.run_requests import Due, DueRun, FindDue, TidyRuns
from ..._values.keys import Key
from ..._values.records import Row
from ...errors import (
    ConfigurationError,
    CorruptRecordError,
    SchemaVersionError,
    StoreUnavailableError,
)
from ...stores._base import Program
from .key_search import KeySearch
from .record_layout import row_of
from .routed_commands import ScriptCall
from .scripts import Script

__all__ = ["MARK", "DueIndex"]

PARTS: Final = 16
"""Never changed: a run's part follows from its id."""
MARK: Final = 30_000
LATEST: Final = 10_000
_TRIES: Final = 3


class DueEntry(NamedTuple):
    part: int
    member: bytes
    score: bytes

    @property
    def id(self) -> bytes:
        return self.member[:32]


class DueLook(NamedTuple):
    at: int
    """When to look again; `DUE`: it can run now; `DROP`: nothing is left of it."""
    now: int
    row: Row | None = None
    function: bytes = b""
    arguments: bytes = b""
    completes: bool = False
    is_kept: bool = False
    """There are steps, or at least a run to which they would belong."""


class DueIndex(KeySearch):
    """A base class of `RedisPrograms`."""

    def _index(self, part: int) -> tuple[bytes, bytes]:
        name = b"%s:{due.%d}" % (self.before.partition(b":{")[0], part)
        return name, name + b"f"

    def run_key(self, id: bytes) -> bytes:  # noqa: A002
        return self.before + id + b"}r"

    # -- writing ------------------------------------------------------------------------------

    def _indexed(
        self,
        id_: bytes,
        script: str,
        keys: tuple[bytes, ...],
        args: tuple[Any, ...],
        due_in: Callable[[Any], int | None],
        *,
        more: tuple[Any, ...] = (),
        function: bytes = b"",
        repeatable: bool = True,
    ) -> Generator[Any, Any, Any]:
        """Call a script that writes a run, make sure that the index has it, and return the script's reply.

        `due_in`: what the reply says about when to look; None: nothing. `more` follows the id and the
        time by which the call must come.
        """
        index = self._index(id_[0] % PARTS)
        if not self.apart:
            call = ScriptCall(
                getattr(self.scripts, script), (*keys, *index), (*args, id_, b"", *more), True, repeatable
            )  # fmt: skip
            return (yield from self._asked(call))
        for _ in range(_TRIES):
            mark = ScriptCall(self.scripts.due_mark, index, (id_, MARK, function), True)
            _, now, score = yield from self._asked(mark)
            call = ScriptCall(
                getattr(self.scripts, script), keys, (*args, id_, now + LATEST, *more), True, repeatable
            )  # fmt: skip
            reply = yield from self._asked(call)
            if reply[0] != 9:
                break
        else:
            raise StoreUnavailableError(
                "the clocks of the Cluster's nodes differ by seconds, or its answers take as long; "
                "nothing was written; synchronise the clocks of the nodes"
            )
        delay = due_in(reply)
        if delay is not None and delay < MARK:
            settle = ScriptCall(self.scripts.due_settle, index, (id_, score, delay))
            yield [settle]  # if it fails, the mark is looked at
        return reply

    def _asked(self, call: ScriptCall) -> Generator[Any, Any, Any]:
        (reply,) = yield [call]
        if isinstance(reply, Exception):
            raise reply
        return reply

    # -- looking ------------------------------------------------------------------------------

    def find_due(self, ask: FindDue) -> Program[Due]:
        overdue: Any = b"" if ask.functions is None else ask.overdue
        names = [name.encode() for name in ask.functions or ()]
        entries, now = yield from self._due(0, b"-inf", b"", ask.limit, overdue, names)
        entries.sort(key=lambda entry: float(entry.score))
        entries = entries[: ask.limit]
        looks = yield from self._look_at(entries, now, set())
        moves: list[tuple[DueEntry, int | None, bytes]] = []
        found: list[tuple[int, DueRun]] = []
        for entry in entries:
            look = looks[entry.id]
            if look.at == run_lifecycle.DUE:
                assert look.row is not None
                pause = ask.pause if look.completes else run_lifecycle.CLOSED_PAUSE
                if look.completes:
                    key = Key(look.row.value, look.row.scope, absolute=True)
                    asked = look.function.decode(), look.arguments, look.row.fingerprint
                    overdue = look.now - look.row.lease_until
                    found.append((len(moves), DueRun(key, *asked, overdue)))
                moves.append((entry, look.now + pause, look.function))
            else:
                moves.append((entry, None if look.at < 0 else look.at, look.function))
        moved = yield from self._move(moves)
        runs = {run.key.id: run for place, run in found if moved[place]}
        return Due(list(runs.values()), len(entries) >= ask.limit)

    def tidy_runs(self, ask: TidyRuns) -> Program[tuple[int, bytes]]:
        """`after`: the part, and the last entry that was looked at in it."""
        if ask.only:
            return (yield from self._tidy_one(ask.only)), b""
        first, score, member = 0, b"-inf", b""
        if ask.after:
            first = ask.after[0]
            score, _, member = ask.after[1:].partition(b" ")
        try:
            entries, now = yield from self._due(first, score, member, ask.limit, b"", ())
        except ConfigurationError:
            return 0, b""  # a user that may not read runs has none
        part = entries[: ask.limit]
        removed: set[bytes] = set()
        looks = yield from self._look_at(part, now, removed)
        moves = [
            (entry, None if look.at < 0 else look.at, look.function)
            for entry, look in ((entry, looks[entry.id]) for entry in part)
            if look.at != run_lifecycle.DUE
        ]
        yield from self._move(moves)
        if len(entries) < ask.limit:
            return len(removed), b""
        last = part[-1]
        return len(removed), bytes([last.part]) + last.score + b" " + last.member

    def _tidy_one(self, id_: bytes) -> Program[int]:
        """Look at this run now, and bring its entry forward. What is over leaves the index at the next look."""
        part, removed = id_[0] % PARTS, set[bytes]()
        look = (yield from self._look_at([DueEntry(part, id_, b"")], 0, removed))[id_]
        delay = max(0, look.at - look.now)
        yield [ScriptCall(self.scripts.due_settle, self._index(part), (id_, b"", delay))]
        return len(removed)

    def _due(
        self,
        first: int,
        score: bytes,
        member: bytes,
        limit: int,
        overdue: Any,
        names: Sequence[bytes],
    ) -> Program[tuple[list[DueEntry], int]]:
        """Up to `limit` entries of each part whose time has come, and the time of the index.

        It begins with the part `first`, after this score and member.
        """
        calls = []
        for part in range(first, PARTS):
            args = (limit, overdue, score, member, *names)
            calls.append(ScriptCall(self.scripts.due_list, self._index(part), args))
            score, member = b"-inf", b""
        entries: list[DueEntry] = []
        now = 0
        for part, reply in enumerate((yield calls), first):
            if isinstance(reply, Exception):
                raise reply
            now = max(now, reply[0])
            pairs = zip(reply[1::2], reply[2::2], strict=True)
            entries += [DueEntry(part, member, score) for member, score in pairs]
        return entries, now

    def _look_at(
        self, entries: Sequence[DueEntry], now: int, removed: set[bytes]
    ) -> Program[dict[bytes, DueLook]]:
        """Compare the records of these runs; remove the steps of those that are over."""
        ids = list(dict.fromkeys(entry.id for entry in entries))
        if not ids:
            return {}
        replies = yield [self._of_run(self.scripts.look, id_) for id_ in ids]
        looks = {id_: _look_of(id_, reply, now) for id_, reply in zip(ids, replies, strict=True)}
        over = [
            id_ for id_, look in looks.items() if look.at == run_lifecycle.DROP and look.is_kept
        ]
        if over:
            dropped = yield [self._of_run(self.scripts.drop, id_) for id_ in over]
            for id_, reply in zip(over, dropped, strict=True):
                if reply == 1:
                    removed.add(id_)
                else:  # it was started again meanwhile, or cannot be removed now
                    looks[id_] = looks[id_]._replace(at=now + run_lifecycle.CLOSED_PAUSE)
        return looks

    def _of_run(self, script: Script, id_: bytes) -> ScriptCall:
        return ScriptCall(script, (self.key(id_), self.run_key(id_)), ())

    def _move(self, moves: Sequence[tuple[DueEntry, int | None, bytes]]) -> Program[list[bool]]:
        """Look again at these times (None: never). Which of the entries were still as they were read."""
        by_part: dict[int, list[int]] = {}
        for place, (entry, _, _) in enumerate(moves):
            by_part.setdefault(entry.part, []).append(place)
        moved = [False] * len(moves)
        if not moves:
            return moved
        calls = []
        for part, places in by_part.items():
            args: list[Any] = []
            for place in places:
                entry, at, function = moves[place]
                args += (entry.member, entry.score, b"" if at is None else at, function)
            calls.append(ScriptCall(self.scripts.due_move, self._index(part), tuple(args)))
        for places, reply in zip(by_part.values(), (yield calls), strict=True):
            if isinstance(reply, Exception):
                raise reply
            for place, each in zip(places, reply, strict=True):
                moved[place] = each == 1
        return moved


def _look_of(id_: bytes, reply: Any, now: int) -> DueLook:
    try:
        if isinstance(reply, Exception):
            raise reply
        now, text, function, arguments, completes, keep = reply
        row = row_of(id_, text) if text else None
    except (CorruptRecordError, SchemaVersionError):  # it waits, like a parked one
        return DueLook(now + run_lifecycle.CLOSED_PAUSE, now)
    at = run_lifecycle.next_look(row, now)
    if at == run_lifecycle.DROP and keep is not None and int(keep) > now:
        at = int(keep)  # a signal waits for its run
    is_kept = function is not None
    return DueLook(at, now, row, function or b"", arguments or b"", completes == b"1", is_kept)
