"""The two pages, made of the maps and of the last recorded results, and of nothing else."""

from __future__ import annotations

from tests.house.repository import ROOT
from tests.maps import attacks, recording
from tests.maps.faults import FAULTS, MODES, NONE, cells
from tests.maps.places import RULE

FAULTS_PAGE = ROOT / "docs" / "reference" / "faults.md"
ATTACKS_PAGE = ROOT / "docs" / "reference" / "attacks.md"
NOTE = (
    "<!-- Made by `python -m tests.maps` from tests/maps: change the maps, then run it again. -->"
)
GROUPS = {
    "kill -9": "A worker is killed (kill -9)",
    "store": "The store fails",
    "time": "Clocks and leases",
    "load": "Many callers at once",
    "handler": "The handler fails",
    "process": "Processes and event loops",
    "broker": "The broker",
    "deploy": "Deployments",
}
SHOWN = {"passed": "✓", "failed": "✗", "skipped": "–"}
OTHERS = {"✗": "failed", "–": "skipped", "·": "not recorded yet"}


def named() -> set[str]:
    """Every test that a map names."""
    held = [cell.held_by for row in FAULTS for cell in cells(row).values()]
    return {place for places in (*held, *attacks.held_by().values()) for place in places}


def faults_page() -> str:
    ended = recording.read()
    lines = [
        NOTE,
        "",
        "# Fault matrix",
        "",
        "What can go wrong, what must happen then, and the tests that check it. Open a cell to see its tests, each with its last",
        "recorded result: ✓ passed, ✗ failed, – skipped because a server was missing, · newer than the last record. `rule:` is a rule of the",
        "conformance suite, which runs on every store. `lab/` is a trial of [the proof lab](../explanation/proof.md). *Lease mode* is",
        "a receiver, *same transaction* an inbox, *steps* a durable function. For the reasons, see",
        "[what we cannot promise](../explanation/what-we-cannot-promise.md).",
    ]
    group = ""
    for row, fault in FAULTS.items():
        if fault.group != group:
            group = fault.group
            lines += [
                "",
                f"## {GROUPS[group]}",
                "",
                "| fault | mode | what must happen | tests |",
                "|---|---|---|---|",
            ]
        name = fault.name
        for mode, cell in cells(row).items():
            if cell is not NONE:
                tests = _tests(cell.held_by, ended)
                lines.append(f"| {name} | {MODES[mode]} | {cell.outcome} | {tests} |")
                name = ""
    return "\n".join([*lines, ""])


def attacks_page() -> str:
    ended, held = recording.read(), attacks.held_by()
    lines = [
        NOTE,
        "",
        "# Attacks",
        "",
        "What an attacker may try, what must happen then, and the tests that check it. Open a cell to see its tests, each with its",
        "last recorded result: ✓ passed, ✗ failed, – skipped, · newer than the last record.",
        "",
        "| | attack | what must happen | tests |",
        "|---|---|---|---|",
    ]
    for row, (attack, outcome) in attacks.ATTACKS.items():
        told = (
            _tests(tuple(held[row]), ended)
            if held[row]
            else f"not tested: {attacks.NOT_THERE[row]}"
        )
        limit = f"<br>Limit: {attacks.LIMITS[row]}." if row in attacks.LIMITS else ""
        lines.append(f"| {row} | {attack} | {outcome} | {told}{limit} |")
    return "\n".join([*lines, ""])


def _tests(places: tuple[str, ...], ended: dict[str, str]) -> str:
    """The number of tests, and how those ended that did not pass; their names on request."""
    shown = "<br>".join(f"{_mark(place, ended)} `{place}`".strip() for place in places)
    tests = [place for place in places if not place.startswith("lab/")]
    marks = [_mark(place, ended) for place in tests]
    count = f"{len(tests)} test{'s' * (len(tests) != 1)}"
    others = [f"{marks.count(mark)} {word}" for mark, word in OTHERS.items() if mark in marks]
    told = f"{count}: {', '.join(others)}" if others else f"✓ {count}"
    lab = " and the lab" if len(tests) < len(places) else ""
    return f"<details><summary>{told}{lab}</summary>{shown}</details>"


def _mark(place: str, ended: dict[str, str]) -> str:
    if place.startswith("lab/"):
        return ""
    return SHOWN.get(ended.get(place, ""), "·")


def write() -> None:
    FAULTS_PAGE.write_text(faults_page(), "utf-8")
    ATTACKS_PAGE.write_text(attacks_page(), "utf-8")


def to_run() -> list[str]:
    """What `pytest` must be given to run every named test; rules are run on the embedded stores."""
    files = {place for place in named() if not place.startswith((RULE, "lab/"))}
    return sorted({*files, "tests/conformance/test_memory.py", "tests/conformance/test_sqlite.py"})
