"""Following a store: one pass copies what has changed in it, oldest change first.

A pass reads the records that changed since the last one, by the source's own clock, with an overlap
for clocks that differ and transactions that end late. `Adopt` puts each record into the target, and
never in place of a newer one, so a pass may be repeated, and two followers may run at once.

How far a pass came is a document in the *target*, which is what is left when the source is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any, Final

import msgspec

from ..._values.hidden_keys import CHECK_KEY
from ..._values.keys import Key
from ..._values.own_records import FOLLOW_SCOPE, is_own
from ..._values.records import Row, State
from ...errors import CorruptRecordError, SchemaVersionError, StoreUnavailableError
from ..durable.run_requests import LoadRun
from ..operator_lifecycle import ORDER
from ..protocol import Ack, Adopt, Browse, Page, Read, Rewrite
from .epochs import SOURCE, TARGET, On, RegionFlow, keep_document
from .pausing import CLOSED, homes_of, in_doubt, late_bounds
from .settling import UNFINISHED, Settling, learn, settle_row

__all__ = [
    "PAGE",
    "Copied",
    "Progress",
    "follow",
    "progress_key",
    "progress_of",
]

PAGE: Final = 200
"""Records that are read at once."""

NAMED: Final = 20
"""Keys of problems that a report names."""

LEFT: Final = 1_000
"""Records that a pass may fail to copy. A pass that fails to copy more is not counted, so the lag grows."""

AHEAD: Final = 5_000
"""Milliseconds that the clock of a follower may be ahead of the one that reads its progress."""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a follower came. In the target, under the name of the source."""

    high: int = 0
    """All changes up to this one were copied, by the source's clock."""
    until: int = 0
    """Everything that the source recorded before this was copied (ms since 1970, the follower's clock)."""
    passes: int = 0
    left: tuple[str, ...] = ()
    """Except these: ids, in hex, of records that could not be read, that the target refused, or
    that were late. Every pass tries them again."""

    def lag(self, now: int) -> float | None:
        """Seconds; None: unknown. No pass has ended, or the clocks of follower and reader differ too much."""
        if not self.passes or self.until > now + AHEAD:
            return None
        return max(0, now - self.until) / 1000


class Copied(msgspec.Struct, frozen=True, kw_only=True):
    """What one pass did."""

    examined: int = 0
    """Records that were read from the source."""
    copied: int = 0
    """Records that the target has now, or had already."""
    newer: int = 0
    """Records of which the target has a newer one, or the answer."""
    learned: int = 0
    """When settling: answers of the old region to keys that were held or unfinished here."""
    twice: tuple[str, ...] = ()
    """When settling: keys (in short form) that both regions worked on. At most 20 are named."""
    twice_count: int = 0
    """When settling: how many."""
    skipped: int = 0
    """Unfinished durable runs."""
    in_doubt: tuple[str, ...] = ()
    """The source is in doubt about the keys of these homes: the pass ended, and what it read was not copied.
    Settle first."""
    failed: tuple[str, ...] = ()
    """Keys (in short form) that the target refused. At most 20 are named."""
    failed_count: int = 0
    late: int = 0
    """Records that were not copied, because they are late claims, or may be, or the target has a
    late claim in their place. Every pass tries them again, and so does every move."""
    unreadable: tuple[str, ...] = ()
    """Ids, in hex, of records that cannot be read: they are damaged, or a newer version wrote them,
    or an older one forgot their keys, which the target never knew. They were not copied. At most
    1,000 are named."""
    unreadable_count: int = 0
    until: int = 0
    """As in the progress."""
    took: float = 0.0
    """Seconds."""


def progress_key(source: str) -> Key:
    return Key(source, scope=(FOLLOW_SCOPE,), absolute=True)


def progress_of(source: str) -> RegionFlow[tuple[Progress, bytes | None]]:
    key = progress_key(source)
    row: Row | None = yield On(TARGET, Read(key.id))
    if row is None or row.result is None:
        return Progress(), None
    try:
        return msgspec.json.decode(row.result, type=Progress), row.result
    except msgspec.MsgspecError as error:
        raise CorruptRecordError(
            f"the progress of following {source!r} cannot be read ({error}); release its record in the "
            "target, and everything is copied again",
            key=key,
        ) from error


class _Pass:
    """What is counted on the way."""

    def __init__(self) -> None:
        self.examined = self.copied = self.newer = self.learned = self.skipped = self.high = 0
        self.twice: list[str] = []
        self.failed: dict[str, None] = {}
        self.unreadable: dict[str, None] = {}
        self.late: dict[str, None] = {}
        self.again: dict[bytes, Row] = {}
        """Records that an earlier pass could not copy, and that were copied now."""

    def report(self, until: int, took: float) -> Copied:
        return Copied(
            examined=self.examined,
            copied=self.copied,
            newer=self.newer,
            learned=self.learned,
            twice=tuple(self.twice[:NAMED]),
            twice_count=len(self.twice),
            skipped=self.skipped,
            failed=tuple(id_[:8] for id_ in islice(self.failed, NAMED)),
            failed_count=len(self.failed),
            late=len(self.late),
            unreadable=tuple(islice(self.unreadable, LEFT)),
            unreadable_count=len(self.unreadable),
            until=until,
            took=took,
        )


def follow(
    source: str,
    now: Callable[[], int],
    *,
    overlap: int,
    steps: bool,
    page: int = PAGE,
    settling: Settling | None = None,
    older: Settling | None = None,
    moving: bool = False,
    may_be_of: Callable[[Row, str], bool] = lambda row, label: True,
    tell: Callable[[int], None] | None = None,
) -> RegionFlow[Copied]:
    """One pass. `steps`: the source can keep durable runs. `moving`: the register says that there
    is no doubt. `older`: the next epoch has begun, so all records of the source are of older ones.
    `may_be_of`: whether the key of a record may have the home with this name; if it is not known,
    it may.

    The pass that fails changes no progress, so the next one copies the same records again.
    """
    before, document = yield from progress_of(source)
    began = now()
    high = before.high if settling is None or settling.high is None else settling.high
    since = high - overlap if high else None
    seen = _Pass()
    left, after = before.left, ""
    while True:
        if left:
            found: Page = yield from _read_again(left)
        else:
            found = yield On(SOURCE, Browse(page, changed_after=since, after=after))
        # After the page was read: a record that must not be copied is younger than the document that says so.
        here = yield from homes_of(SOURCE)
        if not moving and (doubts := in_doubt(here)):
            report = seen.report(before.until, (now() - began) / 1000)
            return msgspec.structs.replace(report, in_doubt=doubts)
        there = yield from homes_of(TARGET)
        rows = yield from _rows_of(seen, found, steps)
        if older is not None:
            older.refuse_overtaken(there)
            rows = [older.bounded(row) for row in rows]
        bounds = late_bounds(here, there) if older is None else []
        if bounds:
            late = [row for row in rows if any(each.concerns(row, may_be_of) for each in bounds)]
            rows = yield from _without_late(seen, rows, late)
        lost = yield from _copy(seen, rows, settling)
        if lost and older is None:
            served = [each.label for each in bounds if each.served]
            hidden = [row for row in lost if not any(may_be_of(row, each) for each in served)]
            yield from _note_hidden(seen, hidden)
        if left:
            seen.again = {row.id: row for row in found.rows}
        if tell is not None:
            tell(seen.examined)
        after = found.after
        if not left and not after:
            break
        left = ()
    if settling is not None:
        yield from learn(seen, settling, page)
    # What changed after the pass began may be newer than a record that the pass did not see. It
    # reads on while the source works.
    high = max(before.high, min(seen.high, began))
    left = tuple({**seen.unreadable, **seen.failed, **seen.late})
    done = Progress(high=high, until=began, passes=before.passes + 1, left=left)
    if len(left) > LEFT:
        done = before
    else:
        yield from _save(source, document, done, now())
    return seen.report(done.until, (now() - began) / 1000)


def _rows_of(seen: _Pass, found: Page, steps: bool) -> RegionFlow[list[Row]]:
    """What is to be copied of this page."""
    seen.unreadable |= dict.fromkeys(found.unreadable)
    rows = []
    for row in found.rows:
        seen.high = max(seen.high, row.changed_at)
        if is_own(row.scope) and row.scope != CHECK_KEY.scope:  # about the source itself
            continue
        if seen.again.get(row.id) == row:
            continue
        seen.examined += 1
        try:
            copy = yield from _copyable(row, steps)
        except CorruptRecordError:  # its run, or its id
            seen.unreadable[row.id.hex()] = None
            continue
        if copy is None:
            seen.skipped += 1
        else:
            rows.append(copy)
    return rows


def _without_late(seen: _Pass, rows: list[Row], late: list[Row]) -> RegionFlow[list[Row]]:
    """Leave out what is late, unless the target has it already: it may be a copy of the target's own record."""
    if not late:
        return rows
    found = yield On(TARGET, [Read(row.id) for row in late])
    left = {
        row.id
        for row, here in zip(late, found, strict=True)
        if not isinstance(here, Row) or _level(here) < _level(row)
    }
    seen.late |= dict.fromkeys(id_.hex() for id_ in left)
    return [row for row in rows if row.id not in left]


def _level(row: Row) -> tuple[int, int]:
    return row.fence, ORDER[row.state]


def _note_hidden(seen: _Pass, lost: list[Row]) -> RegionFlow[None]:
    """Records of the region that serves, in whose place the target has a late claim. A move reads them again."""
    found = (yield On(TARGET, [Read(row.id) for row in lost])) if lost else []
    for row, here in zip(lost, found, strict=True):
        if not isinstance(here, Row) or here.state not in CLOSED:  # also one that has expired
            seen.late[row.id.hex()] = None


def _copy(seen: _Pass, rows: list[Row], settling: Settling | None) -> RegionFlow[list[Row]]:
    """Returns those of which the target has a newer record."""
    answers = (yield On(TARGET, [Adopt(row) for row in rows])) if rows else []
    for row, answer in zip(rows, answers, strict=True):
        seen.late.pop(row.id.hex(), None)  # what an earlier page showed of it
        yield from _count(seen, row, answer, settling)
    return [row for row, answer in zip(rows, answers, strict=True) if answer is Ack.LOST]


def _read_again(left: tuple[str, ...]) -> RegionFlow[Page]:
    """What earlier passes could not copy. A record that is gone is left out."""
    page = Page([])
    if not left:
        return page
    answers = yield On(SOURCE, [Read(bytes.fromhex(id_)) for id_ in left])
    for id_, row in zip(left, answers, strict=True):
        if isinstance(row, CorruptRecordError | SchemaVersionError):
            page.unreadable += (id_,)
        elif isinstance(row, Exception):
            raise row
        elif row is not None:
            if len(row.id) < 32 and row.value:  # the source keeps half of the id
                row.id = Key(row.value, row.scope, absolute=True).id
            page.rows.append(row)
    return page


def _copyable(row: Row, steps: bool) -> RegionFlow[Row | None]:
    if row.state is State.SUSPENDED:
        return None
    if row.state is State.FORGOTTEN and len(row.id) < 32:
        # An older version erased half of its id with its text; the target may have the whole one.
        known: Page = yield On(TARGET, Browse(1, digits=row.id.hex()))
        if not known.rows:
            raise CorruptRecordError(f"an older version forgot {row.id.hex()}, and half of its id")
        return msgspec.structs.replace(row, id=known.rows[0].id)
    if steps and row.state in UNFINISHED and (yield On(SOURCE, LoadRun(row.id))) is not None:
        return None
    return row


def _count(seen: _Pass, row: Row, answer: Any, settling: Settling | None) -> RegionFlow[None]:
    if isinstance(answer, StoreUnavailableError):
        raise answer
    if isinstance(answer, CorruptRecordError | SchemaVersionError):
        seen.unreadable[row.id.hex()] = None  # the target has a record of this key
    elif isinstance(answer, Exception):
        seen.failed[row.id.hex()] = None
    elif answer is Ack.OK:
        seen.copied += 1
    elif settling is None or not settling.concerns(row):
        seen.newer += 1
    else:
        yield from settle_row(seen, row, settling.epoch)


def _save(source: str, document: bytes | None, done: Progress, now: int) -> RegionFlow[None]:
    """If another follower of the same source was faster, its progress stays."""
    key, after = progress_key(source), msgspec.json.encode(done)
    if document is not None:
        yield On(TARGET, Rewrite(key.id, State.COMPLETED, document, after))
        return
    row: Row | None = yield On(TARGET, Read(key.id))
    if row is None or row.result is None:
        yield from keep_document(TARGET, key, after, row, now)
