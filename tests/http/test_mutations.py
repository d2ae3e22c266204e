"""D24: the fuzzer of `lab.fuzz` over everything that reads input. Its full size is a million each.

``TWICESAFE_MUTATIONS=1000000`` runs that many; by default two thousand. Hypothesis looks for smaller
examples of the same in `test_fuzz.py`.
"""

from __future__ import annotations

import os
import re

import pytest

from lab.fuzz import LIMIT, TARGETS, Target, fuzz
from twicesafe._core.http.wire import RequestGuard, ResponseGuard

INPUTS = int(os.environ.get("TWICESAFE_MUTATIONS", "2000"))


@pytest.mark.item("D24", "D12")
@pytest.mark.parametrize("name", TARGETS)
def test_no_input_crashes_or_hangs_a_reader(name: str):
    tally = fuzz(TARGETS[name], INPUTS)
    assert [str(finding) for finding in tally.findings] == []
    assert tally.inputs == INPUTS
    assert tally.accepted > 0  # else it would only have knocked at the door
    assert tally.slowest < LIMIT


def test_a_crash_and_a_hang_are_found():
    def crashes(octets: bytes) -> bool:
        return octets.decode("ascii") != ""

    (finding, *_) = fuzz(Target("crash", crashes, (b"abc",), (b"x",)), 2000).findings
    assert "UnicodeDecodeError" in finding.what

    def hangs(octets: bytes) -> bool:
        return re.fullmatch(rb"(a|a)*b", octets) is not None  # exponential

    tally = fuzz(Target("hang", hangs, (b"a" * 40,), (b"a",)), 1, enough=1)
    assert [finding.what for finding in tally.findings] == ["hang"]


def test_the_same_seed_gives_the_same_inputs():
    seen: list[list[bytes]] = [[], []]
    for inputs in seen:
        fuzz(
            Target("any", lambda octets, to=inputs: not to.append(octets), (b"abc",), (b"x",)), 500
        )  # type: ignore[misc]
    assert seen[0] == seen[1]
    assert len(set(seen[0])) > 100


@pytest.mark.item("D15")
@pytest.mark.parametrize(
    "name, wrong",
    [("wire-requests", r"[\x00]"), ("wire-responses", r"[\x00]"), ("wire-requests", r"(?<!\r)\n")],
)
def test_a_guard_that_takes_a_bare_line_end_is_found(
    name: str, wrong: str, monkeypatch: pytest.MonkeyPatch
):
    """The hole that it was made for: LF alone in all lines, or only CR."""
    for guard in (RequestGuard, ResponseGuard):
        monkeypatch.setattr(guard, "FORBIDDEN", re.compile(wrong.encode()))
    assert fuzz(TARGETS[name], 5000, enough=1).findings
