"""The layouts of the table of records, one for each version of its schema.

    1  wide     32 bytes of a key's identity in ``…_records``: the layout of the first versions
    2  moving   16 bytes in ``…_keys``. Records that were not moved yet are in ``…_wide``
    3  narrow   16 bytes in ``…_keys``, and nothing else

This version of twicesafe works on all three, so it can run beside older nodes until an operator runs
``twicesafe migrate``. That step renames ``…_records``, so every statement of a node that knows only the
wide layout fails from then on, and writes nothing. In the moving layout a record is moved before it is
used (`SqlPrograms.fetch`), so no statement has to look into two tables: docs/decisions/0021 has the proof.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ...errors import SchemaVersionError
from ...stores._base import Finding

__all__ = ["MOVING", "NARROW", "WIDE", "Layout", "layout_findings", "layout_of"]


class Layout(NamedTuple):
    version: int
    """Of the schema. It only grows: a node that reads a lower one has read it too early."""
    holder: str
    """Records are in the table ``<table>_<holder>``."""
    width: int
    """Bytes of a key's identity that are stored."""
    origin: str = ""
    """Records that were not moved yet are in ``<table>_<origin>``."""


WIDE: Final = Layout(1, "records", 32)
MOVING: Final = Layout(2, "keys", 16, "wide")
NARROW: Final = Layout(3, "keys", 16)

_OF_VERSION: Final = {layout.version: layout for layout in (WIDE, MOVING, NARROW)}


def layout_findings(layout: Layout) -> list[Finding]:
    """What `doctor` says about an older layout."""
    if layout == WIDE:
        remedy = "when all nodes have this version, run: twicesafe migrate"
        return [Finding("warn", "the records have the layout of an older version", remedy)]
    if layout == MOVING:
        what = "a migration was not finished: nothing is swept, and every call takes longer"
        return [Finding("warn", what, "run: twicesafe migrate")]
    return []


def layout_of(version: int, where: str) -> Layout:
    """The layout of this version of the schema. Raises for versions that we do not know."""
    found = _OF_VERSION.get(version)
    if found is None:
        remedy = "upgrade twicesafe" if version else "run: twicesafe migrate"
        raise SchemaVersionError(
            f"{where} has schema {version}, this version of twicesafe needs {WHICH}; {remedy}"
        )
    return found


WHICH: Final = f"{min(_OF_VERSION)} to {max(_OF_VERSION)}"
