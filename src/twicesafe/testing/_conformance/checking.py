"""The suite without pytest's runner: for commands, and for tests that expect failures.

for checked in check(Sqlite(), folder):
    print(checked.name, checked.mode, checked.verdict)
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from ..._values.settings import refuse_unknown
from .bench import open_bench
from .rules import StoreRules, rules_of

__all__ = ["Checked", "check"]


@dataclass(frozen=True, slots=True)
class Checked:
    """One rule (and case) on one store, blocking or async."""

    name: str
    mode: str
    verdict: Literal["kept", "broken", "skipped"]
    why: str = ""


def check(
    suite: StoreRules,
    folder: Path,
    modes: Sequence[str] | None = None,
    only: Collection[str] | None = None,
) -> Iterator[Checked]:
    """Test every rule, each on a new store below `folder`; yields the outcomes.

    ``only``: only rules with these names, as in `Checked.name`, with the case in brackets.
    """
    _refuse_unknown(suite, only or ())
    for name, rule in rules_of(type(suite)).items():
        test = getattr(suite, name)
        for case in rule.cases or [""]:
            arguments = {"case": rule.cases[case]} if case else {}
            label = f"{name}[{case}]" if case else name
            if only is not None and label not in only:
                continue
            for mode in suite.modes if modes is None else modes:
                where = Path(tempfile.mkdtemp(dir=folder))
                try:
                    with open_bench(suite, mode, where) as bench:
                        test(bench, **arguments)
                except pytest.skip.Exception as skipped:
                    yield Checked(label, mode, "skipped", str(skipped))
                except Exception as error:
                    yield Checked(label, mode, "broken", f"{type(error).__name__}: {error}")
                else:
                    yield Checked(label, mode, "kept")


def _refuse_unknown(suite: StoreRules, only: Collection[str]) -> None:
    rules = rules_of(type(suite)).items()
    known = [
        f"{name}[{case}]" if case else name for name, rule in rules for case in rule.cases or [""]
    ]
    refuse_unknown(only, known, "rule")
