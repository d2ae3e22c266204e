"""Steps as rows of a SQL table, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ..._core.durable.run_requests import RecordStep
from ..._values.steps import Step, StepState

__all__ = ["ID_BYTES", "KINDS", "NUMBER_OF_KIND", "NUMBER_OF_STATE", "STEP_COLUMNS", "STEP_STATES"]
__all__ += ["step_from", "step_values"]

# On disk, states and kinds are small numbers. Numbers are never reused or reordered.
STEP_STATES: Final = (StepState.DONE, StepState.STARTED, StepState.WAITING)
KINDS: Final = ("run", "capture", "sleep", "wait", "transact", "undo", "failure")
NUMBER_OF_STATE: Final = {state: number for number, state in enumerate(STEP_STATES)}
NUMBER_OF_KIND: Final = {kind: number for number, kind in enumerate(KINDS)}

ID_BYTES: Final = 16
"""Of a key's identity, as in the table of records."""

STEP_COLUMNS: Final = (
    "id",
    "name",
    "kind",
    "state",
    "fence",
    "attempt",
    "position",
    "has_undo",
    "created_at",
    "changed_at",
    "due_at",
    "fingerprint",
    "result",
)


def step_values(
    id_: bytes | bytearray,
    step: Step | RecordStep,
    created: int,
    changed: int,
    due: int,
    blob: type[bytes | bytearray] = bytes,
) -> tuple[Any, ...]:
    """In the order of `STEP_COLUMNS`; `blob`: how bytes are bound."""
    result = step.result
    return (
        id_,
        blob(step.name.encode()),
        NUMBER_OF_KIND[step.kind],
        NUMBER_OF_STATE[step.state],
        step.fence,
        step.attempt,
        step.position,
        1 if step.undo else 0,
        created,
        changed,
        due,
        blob(step.fingerprint),
        None if result is None else blob(result),
    )


def step_from(columns: Sequence[Any]) -> Step:
    """Without the id."""
    name, kind, state, fence, attempt, position, undo, created, changed, due, print_, result = (
        columns
    )
    return Step(
        bytes(name).decode(),
        KINDS[kind],
        STEP_STATES[state],
        fence,
        attempt,
        position,
        bool(undo),
        created,
        changed,
        due,
        bytes(print_),
        None if result is None else bytes(result),
    )
