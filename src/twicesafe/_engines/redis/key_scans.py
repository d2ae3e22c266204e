"""The names of keys, how they are scanned, and the sweep. `key_search` searches them.

All use SCAN, never KEYS.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from ..._core.protocol import History, Sweep
from ..._values.records import AuditEntry, SweepReport, moment
from ...errors import ConfigurationError, StoreError
from ...stores._base import Program
from ..sql.commands import STATES
from .routed_commands import PlainCommand, ScriptCall
from .scripts import Scripts

__all__ = ["KeyScans", "entries_of"]

STEP: Final = 500
"""Keys asked for in one SCAN."""
STEPS: Final = 100
"""SCANs in one step of a sweep at most: most keys of the server may be another application's."""


PLAIN: Final = (b"0", b"1")
COMPACT: Final = (b"2", b"3")
COMPACT_MARK: Final = b"2"


class KeyScans:
    """The base class of `KeySearch`."""

    apart: bool = False
    """Keys are in several slots: this is a Cluster."""

    def __init__(self, prefix: str, scripts: Scripts) -> None:
        self.scripts = scripts
        # A hash tag, so that a record, its audit trail and its channel are in one slot. The dot keeps
        # the tag from being empty when an id begins with "}".
        self.before = f"{prefix}:{{.".encode()
        self._marker = f"{prefix}:layout".encode()
        self.how: Sequence[bytes] = PLAIN
        """How a claim is written, by its `hold`: compact where no node needs the first layout."""

    def key(self, id: bytes) -> bytes:  # noqa: A002
        return self.before + id + b"}"

    def trail(self, id: bytes) -> bytes:  # noqa: A002
        return self.before + id + b"}a"

    def records_among(self, names: list[bytes]) -> list[bytes]:
        """The names of our records. Of all that begin as ours do, only records have this length. So
        a pattern need not have an end: comparing it with each key would take the server as long as
        the rest of the SCAN."""
        before, length = self.before, len(self.before) + 33
        return [name for name in names if len(name) == length and name.startswith(before)]

    # -- the layout of new records ----------------------------------------------------------------

    def settle(self) -> Program[None]:
        """Decide how new records are written: compact if the store says so, or if it is new.

        Every version finds a record under the same name, and refuses one whose layout it does not
        know. So this is not needed for safety. It keeps nodes of the first version from meeting
        records that they refuse. A user that may not scan, or not write the mark, keeps the first
        layout.
        """
        with suppress(StoreError, ConfigurationError):
            (reply,) = yield [PlainCommand((b"GET", self._marker), self._marker)]
            if reply is None and (yield from self._is_new()):
                yield from self.write_compact()
            elif reply == COMPACT_MARK:
                self.how = COMPACT

    def write_compact(self) -> Program[None]:
        """From now on, all nodes that open the store write compact records."""
        mark = (b"SET", self._marker, COMPACT_MARK)
        (reply,) = yield [PlainCommand(mark, self._marker)]
        if isinstance(reply, Exception):
            raise reply
        self.how = COMPACT

    def _is_new(self) -> Program[bool]:
        """Whether there is no record. A server with very many keys of others is not searched to the end."""
        node = cursor = 0
        for _ in range(STEPS):
            found = yield from self._scan(node, cursor, STEP)
            if found is None:
                return True
            cursor, ids = found
            if ids:
                return False
            node += not cursor
        return False

    def history(self, ask: History) -> Program[list[AuditEntry]]:
        key = self.trail(ask.id)
        (reply,) = yield [PlainCommand((b"LRANGE", key, 0, -1), key)]
        return entries_of(ask.id, reply)

    def _scan(
        self, node: int, cursor: int, count: int, end: bytes = b"}"
    ) -> Program[tuple[int, list[bytes]] | None]:
        """One SCAN of a node: the next cursor (0: the end) and the ids; None: no such node."""
        pattern = self.before + b"*" + end
        (reply,) = yield [
            PlainCommand((b"SCAN", cursor, b"MATCH", pattern, b"COUNT", count), node=node)
        ]
        if isinstance(reply, Exception):
            raise reply
        if reply is None:
            return None
        start, stop = len(self.before), len(self.before) + 32
        length = stop + len(end)
        ids = [key[start:stop] for key in reply[1] if len(key) == length]
        return int(reply[0]), ids

    def sweep(self, ask: Sweep) -> Program[tuple[SweepReport, str]]:
        """One step: remove what a TTL should have removed. ``after``: node, cursor, keys to skip."""
        node, cursor, skip = (int(part) for part in (ask.after or "0.0.0").split("."))
        removed = examined = 0
        after = ""
        for _ in range(STEPS):
            found = yield from self._scan(node, cursor, STEP)
            if found is None:
                after = ""
                break
            following, ids = found
            part = ids[skip : skip + ask.limit - examined]
            due, left = part, ask.most - removed
            if len(part) > left:  # look first, to remove no more than the limit
                replies = yield [self._swept(id_, b"look") for id_ in part]
                due = [id_ for id_, reply in zip(part, replies, strict=True) if reply == 1]
            gone = 0
            if due[:left]:
                swept = yield [self._swept(id_) for id_ in due[:left]]
                gone = sum(reply == 1 for reply in swept)
            examined += len(part)
            removed += gone
            if len(due) > left:
                after = f"{node}.{cursor}.{skip}"
                break
            if skip + len(part) < len(ids):
                after = f"{node}.{cursor}.{skip + len(part) - gone}"
                break
            node, cursor, skip = (node, following, 0) if following else (node + 1, 0, 0)
            after = f"{node}.{cursor}.0"
        return SweepReport(removed=removed, examined=examined, more=bool(after)), after

    def _swept(self, id_: bytes, how: bytes = b"") -> ScriptCall:
        return ScriptCall(self.scripts.sweep, (self.key(id_), self.trail(id_)), (how,))


def entries_of(id_: bytes, reply: Any) -> list[AuditEntry]:
    if isinstance(reply, Exception):
        raise reply
    return [
        AuditEntry(id=id_, at=moment(at), action=what, by=by, why=why, state_before=STATES[state])
        for at, what, by, why, state in map(msgspec.msgpack.decode, reply)
    ]
