"""Reads the steps of a run as the scripts write them; lua/runs.lua describes it."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

from ..._values.steps import Step
from ...errors import CorruptRecordError
from ..sql.step_rows import KINDS, STEP_STATES

__all__ = ["steps_of"]

HEAD: Final = struct.Struct("<BBB7sII6s6s6sB")
UNDO, RESULT = 1, 2

_number = int.from_bytes


def steps_of(id_: bytes, fields: Sequence[Any]) -> list[Step]:
    """The steps among these names and values of a run."""
    pairs = zip(fields[::2], fields[1::2], strict=True)
    try:
        return [_step(name[1:].decode(), data) for name, data in pairs if name[:1] == b"s"]
    except (struct.error, IndexError, ValueError) as error:
        raise CorruptRecordError(
            f"a step of the run {id_[:4].hex()} cannot be read ({error}); the run does not continue; look at "
            "its key on the server"
        ) from error


def _step(name: str, data: bytes) -> Step:
    kind, state, flags, fence, attempt, position, created, changed, due, length = HEAD.unpack_from(
        data
    )
    end = HEAD.size + length
    return Step(
        name,
        KINDS[kind],
        STEP_STATES[state],
        _number(fence, "little"),
        attempt,
        position,
        bool(flags & UNDO),
        _number(created, "little"),
        _number(changed, "little"),
        _number(due, "little"),
        data[HEAD.size : end],
        data[end:] if flags & RESULT else None,
    )
