"""The shipped model at full size (C11): Hypothesis asks a store and the lifecycle the same things.

What users run on their own store (`twicesafe.testing._model.StoreModel`), here on ours, in both
modes; a failing example is shrunk and printed with the blob that repeats it.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from twicesafe.testing._model import StoreModel

from .process_deaths import hooks_for
from .trial import KEYED, SERVERS, Trial, trial

__all__ = ["models"]

STEPS = 50


@trial("model of the store", "C11", "examples", ("sqlite", *SERVERS, *KEYED))
def models(t: Trial) -> None:
    """Claims, completions, stale owners, batches, operators, sweeps and reopening come in any order. Does
    the store answer like the lifecycle table, and is every row the same?"""
    hooks = type(hooks_for(t.engine))
    examples = t.size(3, 500 if t.engine == "sqlite" else 50)  # a server is asked 50 times for each
    for mode in ("blocking", "async"):
        counted = [0]

        class Model(hooks, StoreModel):  # type: ignore[misc, valid-type]
            def __init__(self, counted: list[int] = counted) -> None:
                super().__init__()
                counted[0] += 1

        Model.mode = mode
        terms = settings(
            max_examples=examples,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            print_blob=True,
            verbosity=Verbosity.quiet,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate, Phase.shrink),
        )
        machine: Any = seed(t.seed)(Model)
        try:
            run_state_machine_as_test(machine, settings=terms)
        except Exception as error:
            t.broke(f"{mode}: {type(error).__name__}: {error}"[:2000])
        t.tried += counted[0]
    t.count("steps at most", t.tried * STEPS)
