"""The archive: answers that have left the store, as JSON lines in a directory or an S3 bucket.

    report = receiver.archive("s3://answers/shop?region=eu-central-1", older_than="30d")
    found = Archive.open("s3://answers/shop?region=eu-central-1").find(key)
    found.record.state, found.answer()

`receiver.archive` copies answers, waits until they are durable there, and only then erases them in
the store. The record stays as a tombstone until its retention ends, so a late duplicate still does
not run. If the process is killed at any point, an answer is in the store, in the archive, or in
both. No delivery ever reads an archive.

    <place>/day=2026-11-17/<time-sorted name>.jsonl        one file per batch and day of completion

Files are written once and never changed. A result is the bytes that the store had, so an encrypted
one stays encrypted.

`_directory` and `_s3` are the places (`_places`); `_lines` is the format.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from .._values.keys import Key
from .._values.records import Row
from .._values.settings import expect
from ._directory import Directory
from ._lines import ArchivedRecord, day_of, line_of, records_in
from ._places import Place

__all__ = ["Archive", "ArchivedRecord"]

_DAY: Final = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)


class Archive:
    """Answers in a directory or a bucket. Blocking."""

    def __init__(self, place: Place) -> None:
        self._place = place

    @classmethod
    def open(cls, url: str) -> Archive:
        """The archive at ``s3://bucket/prefix?region=…&endpoint=…`` (needs the extra ``s3``), or in
        the directory at this path, which is created when something is written."""
        expect(url, "archive", url, "use a path, or s3://bucket/prefix")
        if url.startswith("s3://"):
            from ._s3 import Bucket

            return cls(Bucket(url))
        expect("://" not in url, "archive", url.partition("://")[0], "use a path, or s3://bucket")
        return cls(Directory(url))

    def write(self, rows: Sequence[Row]) -> None:
        """Add these records; when it returns, they are durable."""
        by_day: dict[str, list[bytes]] = {}
        for row in rows:
            by_day.setdefault(day_of(row), []).append(line_of(row))
        for day, lines in by_day.items():
            self._place.write(f"day={day}", b"".join(lines))

    def records(self, *, day: str | None = None) -> Iterator[ArchivedRecord]:
        """Iterate over all archived records, newest file first. A record that was archived twice comes twice."""
        for name in self._names(day):
            yield from records_in(self._place.read(name), name)

    def find(self, key: Key | str, *, day: str | None = None) -> ArchivedRecord | None:
        """The newest archived record of this key, or of the id that starts with these hex digits.

        There is no index: it reads the files, all of them or those of one day of completion (``2026-11-17``).
        """
        digits = key.id.hex() if isinstance(key, Key) else key.lower()
        mark = b'{"id":"' + digits.encode()
        best: ArchivedRecord | None = None
        for name in self._names(day):
            text = self._place.read(name)
            if mark not in text:
                continue
            lines = b"".join(line for line in text.splitlines(True) if line.startswith(mark))
            for found in records_in(lines, name):
                if best is None or found.record.fence > best.record.fence:
                    best = found
        return best

    def _names(self, day: str | None) -> list[str]:
        if day is not None:
            expect(_DAY.fullmatch(day), "day", day, "use a date like 2026-11-17")
        return sorted(self._place.names("" if day is None else f"day={day}"), reverse=True)
