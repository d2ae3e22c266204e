"""``pytest --record-maps``: how the named tests ended, kept in `results.json`.

One word per test, the worst of its cases; no times and no dates, so that a second run of the same
code writes the same file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.maps.places import RULE

RESULTS = Path(__file__).parent / "results.json"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record-maps",
        action="store_true",
        help="keep how the tests that the maps name have ended, in tests/maps/results.json",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "attack(*ids): rows of the list of attacks that a test holds"
    )
    if config.getoption("--record-maps") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(), "twicesafe-maps")


class Recorder:
    def __init__(self) -> None:
        self.ended: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            for place in places_of(report.nodeid):
                self.ended[place] = worse(self.ended.get(place), report.outcome)

    def pytest_sessionfinish(self) -> None:
        write(self.ended)


def places_of(nodeid: str) -> list[str]:
    """How a map may name this test: by its function or class; as a rule, if it is one."""
    file, *names = nodeid.partition("[")[0].split("::")
    if not names:
        return [file]
    return [f"{file}::{names[0]}", *([f"{RULE}{names[-1]}"] if len(names) > 1 else [])]


def worse(one: str | None, other: str) -> str:
    if one is None or "failed" in (one, other):
        return other if one is None else "failed"
    return "passed" if "passed" in (one, other) else "skipped"


def read() -> dict[str, str]:
    return json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}


def write(ended: dict[str, str]) -> None:
    """Tests that ran are recorded anew, others keep their last result, and tests that no map names go."""
    from tests.maps.pages import named

    known = named()
    kept: dict[str, Any] = {k: v for k, v in {**read(), **ended}.items() if k in known}
    RESULTS.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", "utf-8")
