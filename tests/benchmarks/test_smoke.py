"""The benchmark runs: one tiny case from contestants to report. No time is asserted anywhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import __main__ as program
from benchmarks import floors, publishing, size
from benchmarks.cases import all_cases
from benchmarks.report import as_json, as_markdown, machine
from benchmarks.rows import Row, row_of
from benchmarks.spread import Spread
from benchmarks.workload import RESULT, handler, key_of
from twicesafe import Receiver
from twicesafe.stores.memory import MemoryStore


def test_a_case_goes_from_contestants_to_report(tmp_path: Path):
    (case,) = [each for each in all_cases() if each.id == "sqlite-normal/blocking/first/1"]

    found = case.run(tmp_path / "case", rounds=3, lap=0.0005)
    row = row_of(case, found)

    by_name = {each.name: each for each in found}
    for name in ("floor", "twicesafe"):
        spread = by_name[name].seconds
        assert by_name[name].laps >= 3  # more while the quartiles are on both sides of the target
        assert spread is not None
        assert 0 < spread.low <= spread.median <= spread.high
    assert row.absent["idemkit"] == "has no SQLite store"
    assert row.met in (True, False)
    about = machine()
    assert json.loads(as_json([row], about))["rows"][0]["id"] == case.id
    assert f"| {case.title} |" in as_markdown([row], about)


@pytest.mark.parametrize("path", publishing.made(), ids=lambda path: path.name)
def test_page_and_pictures_show_the_published_numbers(path: Path):
    committed = path.read_text("utf-8")
    assert committed == publishing.made()[path], "run python -m benchmarks --page"


def test_the_floor_keeps_the_protocol(tmp_path: Path):
    """A floor that cheats would make us look slow, or let a cheat of ours look normal."""
    sqlite = floors.SqliteFloor(tmp_path / "floor.db", "normal")
    for floor in (floors.MemoryFloor(), sqlite):
        owner, fence, payload = floor.claim("k")
        assert payload is None
        with pytest.raises(floors.BusyError):
            floor.claim("k")
        with pytest.raises(floors.LostError):
            floor.complete("k", owner, fence + 1, b"stale")  # type: ignore[arg-type]
        floor.complete("k", owner, fence, b"first")  # type: ignore[arg-type]
        assert floor.claim("k")[2] == b"first"
    sqlite.close()


def test_stores_are_filled_with_records_that_replay():
    store = MemoryStore()
    size.fill(store, 3)
    with Receiver(store) as receiver:
        again = receiver.process(key_of(2), handler, key_of(2))
    assert again.replayed
    assert again.value == RESULT


def test_a_spread_is_the_middle_half():
    assert Spread.of([4.0, 1.0, 2.0, 3.0, 5.0]) == Spread(2.0, 3.0, 4.0)


def test_a_quick_run_is_not_published(capsys: pytest.CaptureFixture[str]):
    assert program.main(["--publish", "--quick"]) == 2
    assert "not published" in capsys.readouterr().err


def test_what_a_run_did_not_measure_stays_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(publishing, "PUBLISHED", tmp_path / "published.json")
    monkeypatch.setattr(publishing, "write_page", lambda: None)

    def row(name: str, version: str) -> Row:
        return Row(f"{name}/x", "section", "title", {"floor": "1 µs"}, source=name, version=version)

    before = [row("a", "1"), row("b", "1"), row("gone", "1")]
    publishing.PUBLISHED.write_text(as_json(before, {"python": "3.11"}), "utf-8")
    publishing.publish([row("c", "2"), row("b", "2")], {"python": "3.12"}, ["a", "b", "c"])
    published = json.loads(publishing.PUBLISHED.read_text("utf-8"))
    assert [(each["source"], each["version"]) for each in published["rows"]] == [
        ("a", "1"),
        ("b", "2"),
        ("c", "2"),
    ]
    assert published["about"] == {"python": "3.12"}
    page = as_markdown([Row(**each) for each in published["rows"]], {"processors": "2"})
    assert "| title | 1 µs |  | 1 |" in page
    assert "| title | 1 µs |  | 2 |" in page
