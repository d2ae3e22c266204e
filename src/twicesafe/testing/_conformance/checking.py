"""The suite without pytest's runner: for commands, and for tests that expect it to fail.

for checked in check(Sqlite(), folder):
    print(checked.name, checked.colour, checked.verdict)
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
from .rules import Rules, rules_of

__all__ = ["Checked", "check"]


@dataclass(frozen=True, slots=True)
class Checked:
    """One rule (and case) on one store in one colour."""

    name: str
    colour: str
    verdict: Literal["kept", "broken", "skipped"]
    why: str = ""


def check(
    suite: Rules,
    folder: Path,
    colours: Sequence[str] | None = None,
    only: Collection[str] | None = None,
) -> Iterator[Checked]:
    """Try every rule, each on a store of its own below `folder`; hand over the outcomes.

    ``only``: those of these names, written as `Checked.name` is: with the case in brackets.
    """
    _refuse_unknown(suite, only or ())
    for name, rule in rules_of(type(suite)).items():
        test = getattr(suite, name)
        for case in rule.cases or [""]:
            arguments = {"case": rule.cases[case]} if case else {}
            label = f"{name}[{case}]" if case else name
            if only is not None and label not in only:
                continue
            for colour in suite.colours if colours is None else colours:
                where = Path(tempfile.mkdtemp(dir=folder))
                try:
                    with open_bench(suite, colour, where) as bench:
                        test(bench, **arguments)
                except pytest.skip.Exception as skipped:
                    yield Checked(label, colour, "skipped", str(skipped))
                except Exception as error:
                    yield Checked(label, colour, "broken", f"{type(error).__name__}: {error}")
                else:
                    yield Checked(label, colour, "kept")


def _refuse_unknown(suite: Rules, only: Collection[str]) -> None:
    rules = rules_of(type(suite)).items()
    known = [
        f"{name}[{case}]" if case else name for name, rule in rules for case in rule.cases or [""]
    ]
    refuse_unknown(only, known, "rule")
