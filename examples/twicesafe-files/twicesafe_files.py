"""Files: one file per key, in a folder on one machine; one lock makes every request atomic.

    files:///var/lib/keys        Receiver.open finds this by the package's entry point

`twicesafe.stores.lifecycle` makes all decisions; the store only loads a row, calls it, and saves. A
request writes a new file and renames it, so a reader, or a process after a crash, finds the old record
or the new one, never half of one. Time is the machine's wall clock, so changing that clock changes
leases (``server_clock=False``); the fence still allows only one result. It needs a local disk, because
locks of network file systems are unreliable.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Self

import msgspec

from twicesafe import ConfigurationError, CorruptRecordError, StoreUnavailableError
from twicesafe.stores import (
    AuditEntry,
    AuditLog,
    Browse,
    Capabilities,
    ClaimRequest,
    Count,
    Discard,
    Filter,
    Forget,
    History,
    Page,
    Read,
    Release,
    Request,
    Resolve,
    Row,
    State,
    Stats,
    Store,
    Survey,
    Sweep,
    SweepReport,
    ThreadedStore,
    lifecycle,
    matches,
    moment,
    wall_clock,
)


class Kept(msgspec.Struct):
    """One file: the row, its place in the order of arrival, and what operators did to it."""

    row: Row
    number: int
    audit: list[AuditEntry] = []


class Meta(msgspec.Struct):
    floor: int = 0
    """The highest fence of what was swept: fences of a key go on from there."""
    newest: int = 0


class FilesStore(Store):
    capabilities: ClassVar[Capabilities] = Capabilities(server_clock=False)

    def __init__(self, folder: str | Path, now: Callable[[], int] = wall_clock) -> None:
        self.folder, self.url, self._now = Path(folder), f"files://{folder}", now
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreUnavailableError(f"the folder {folder} cannot be made: {error}") from error

    @classmethod
    def open(cls, url: str) -> Self:
        return cls(_folder_of(url))

    def perform(self, request: Request) -> Any:
        try:
            with self._alone():
                act = _ACTS.get(type(request))
                return self._decide(request) if act is None else act(self, request)
        except OSError as error:
            raise StoreUnavailableError(f"{self.url}: {error}") from error

    def perform_many(self, requests: Sequence[Request]) -> list[Any]:
        answers: list[Any] = []
        for request in requests:  # one item's error stands in its place
            try:
                answers.append(self.perform(request))
            except Exception as error:
                answers.append(error)
        return answers

    def close(self) -> None:
        """Nothing is open between two requests; so a fork does no harm either."""

    # -- the one decision, for ten kinds of requests --------------------------------------------

    def _decide(self, ask: Any) -> Any:
        before, now = self._load(ask.id), self._now()
        row = None if before is None else before.row
        if isinstance(ask, ClaimRequest):
            meta = self._meta()
            answer, after = lifecycle.claim(row, ask, now, meta.floor)
        else:
            answer, after = getattr(lifecycle, ask.op)(row, ask, now)
        if after is None:
            return answer
        if before is None:
            meta.newest += 1
            self._write("meta", meta)  # dying here wastes a number, nothing else
            before = Kept(after, meta.newest)
        elif isinstance(ask, Release | Resolve | Forget | Discard):
            act = AuditEntry(
                id=ask.id, at=moment(now), action=ask.op, by=ask.by, why=ask.why,
                state_before=before.row.state,
            )  # fmt: skip
            before.audit.append(act)
        before.row = after
        self._write(ask.id.hex(), before)
        return answer

    # -- the rest -------------------------------------------------------------------------------

    def _read(self, ask: Read) -> Row | None:
        kept = self._load(ask.id)
        return None if kept is None or lifecycle.is_expired(kept.row, self._now()) else kept.row

    def _history(self, ask: History) -> list[AuditEntry]:
        kept = self._load(ask.id)
        return [] if kept is None else kept.audit

    def _sweep(self, ask: Sweep) -> tuple[SweepReport, str]:
        start, now = int(ask.after or 0), self._now()
        rest = [kept for kept in self._all() if kept.number > start]
        bite = rest[: ask.limit]
        due = [kept for kept in bite if lifecycle.is_expired(kept.row, now)]
        if len(due) > ask.most:
            due = due[: ask.most]
            bite = bite[: bite.index(due[-1]) + 1]
        gone = [kept.row for kept in due]
        if gone:
            meta = self._meta()
            meta.floor = max(meta.floor, *(row.fence for row in gone))
            self._write("meta", meta)  # first: dying here raises a floor, which does no harm
        for row in gone:
            (self.folder / row.id.hex()).unlink()
        after = str(bite[-1].number) if len(rest) > len(bite) else ""
        return SweepReport(removed=len(gone), examined=len(bite), more=bool(after)), after

    def _survey(self, _: Survey) -> Stats:
        now, (found, damaged) = self._now(), self._all_and_damaged()
        rows = [kept.row for kept in found]
        running = [row for row in rows if row.state is State.IN_PROGRESS]
        states = [row.state for row in rows]
        due = [row.expires_at for row in rows if lifecycle.is_expired(row, now)]
        return Stats(
            by_state={state: states.count(state) for state in set(states)},
            unreadable=len(damaged),
            stuck=sum(row.lease_until <= now for row in running),
            expired=len(due),
            oldest_in_progress=moment(min(r.changed_at for r in running)) if running else None,
            oldest_expired=moment(min(due)) if due else None,
        )

    def _browse(self, ask: Browse) -> Page:
        last = int(ask.after) if ask.after else sys.maxsize
        found = [kept for kept in self._found(ask) if kept.number < last]
        page = found[: ask.limit]
        return Page(
            [kept.row for kept in page],
            str(page[-1].number) if len(found) > len(page) else "",
            tuple(self._all_and_damaged()[1]),
        )

    def _count(self, ask: Count) -> int:
        return min(ask.limit, len(self._found(ask)))

    def _found(self, ask: Filter) -> list[Kept]:
        now = self._now()
        return [kept for kept in reversed(self._all()) if matches(kept.row, ask, now)]

    def _audit_log(self, ask: AuditLog) -> list[AuditEntry]:
        log = [
            msgspec.structs.replace(entry, scope=kept.row.scope, value=kept.row.value)
            for kept in self._all()
            for entry in kept.audit
            if entry.at >= moment(ask.since)
        ]
        log.sort(key=lambda entry: entry.at)
        return log[: -ask.limit - 1 : -1]

    # -- files ------------------------------------------------------------------------------------

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One request at a time, of all threads and processes; the lock goes with its process."""
        with open(self.folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _load(self, id_: bytes) -> Kept | None:
        return self._decoded(self.folder / id_.hex(), Kept)

    def _meta(self) -> Meta:
        return self._decoded(self.folder / "meta", Meta) or Meta()

    def _all(self) -> list[Kept]:
        """All that is kept, oldest first; names of 64 digits are records."""
        return self._all_and_damaged()[0]

    def _all_and_damaged(self) -> tuple[list[Kept], list[str]]:
        """And the names of those that cannot be read, which hide no other."""
        found, damaged = list[Kept](), list[str]()
        for path in self.folder.glob("?" * 64):
            try:
                kept = self._decoded(path, Kept)
                found += [kept] if kept else []
            except CorruptRecordError:
                damaged.append(path.name)
        return sorted(found, key=lambda kept: kept.number), damaged

    def _decoded(self, path: Path, kind: Any) -> Any:
        try:
            return msgspec.msgpack.decode(path.read_bytes(), type=kind)
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as error:
            raise CorruptRecordError(
                f"{path} is not a record of this version; nothing was run: look at it by hand"
            ) from error

    def _write(self, name: str, what: Any) -> None:
        """Whole or not at all, and on the disk before the call returns."""
        draft = self.folder / f"{name}.new"
        with open(draft, "wb") as file:
            file.write(msgspec.msgpack.encode(what))
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, self.folder / name)
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


_ACTS: dict[type, Callable[[FilesStore, Any], Any]] = {
    Read: FilesStore._read,
    History: FilesStore._history,
    Sweep: FilesStore._sweep,
    Survey: FilesStore._survey,
    Browse: FilesStore._browse,
    Count: FilesStore._count,
    AuditLog: FilesStore._audit_log,
}


class AsyncFilesStore(ThreadedStore):
    """The same behind one worker thread: a lock or a slow disk stops no event loop."""

    capabilities: ClassVar[Capabilities] = FilesStore.capabilities

    @classmethod
    def open(cls, url: str) -> Self:
        folder = _folder_of(url)
        return cls(lambda: FilesStore(folder), f"files://{folder}")


def _folder_of(url: str) -> str:
    folder = url.removeprefix("files://")
    if not folder.startswith("/"):
        raise ConfigurationError("a files URL is files:///absolute/folder")
    return folder
