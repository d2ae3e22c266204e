"""Two versions in one run: which is which, what cannot run, and what counts as slower. No time is asserted."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from benchmarks import __main__ as program
from benchmarks import against
from benchmarks.case import Case
from benchmarks.cases import calls
from benchmarks.verdicts import Block, Comparison, verdict_of
from benchmarks.workload import Lap

QUICK, LASTING = "memory/blocking/first/1", "sqlite-normal/blocking/duplicate/1"


def case_of(name: str) -> Case:
    (found,) = [each for each in calls() if each.id == name]
    return found


def block(ratio: float) -> Block:
    return Block(Lap(1.0, 1.0), Lap(ratio, ratio))


@pytest.mark.parametrize(
    "pairs, verdict",
    [
        ([[1.10] * 6, [1.08] * 6], "slower"),
        ([[0.90] * 6, [0.92] * 6], "faster"),
        ([[1.00, 1.01, 0.99, 1.02, 0.98, 1.00]], "same"),
        ([[1.10] * 6], "unclear"),  # one pair of processes may be slow by chance
        ([[1.10] * 20, [1.00] * 3], "unclear"),  # the second pair does not agree
        ([[0.80, 1.30, 0.90, 1.20, 1.00, 1.10]] * 2, "unclear"),  # noise
        ([[1.029] * 6], "same"),
    ],
)
def test_a_verdict_needs_more_than_noise(pairs: list[list[float]], verdict: str):
    assert verdict_of(pairs) == verdict


def test_slower_by_either_clock_is_slower_if_the_case_waits():
    blocks = [Block(Lap(1.0, 1.0), Lap(1.2, 1.0)) for _ in range(6)]
    waits, never = case_of("sqlite-full/blocking/first/1"), case_of(QUICK)
    assert Comparison(waits, [blocks, blocks]).verdict == "slower"
    assert Comparison(never, [blocks, blocks]).verdict == "same"


def test_what_is_not_clear_is_called_same_and_marked():
    row = Comparison(case_of(QUICK), [[block(0.5), block(2.0)] * 3] * 4)
    assert (row.verdict, row.is_decided) == ("same", False)
    assert row.as_data()["decided"] is False
    assert "unclear after 4 pairs" in against._remark(row)


def copy_of_the_library(folder: Path) -> Path:
    """`src` as git would unpack it, to be changed by a test."""
    source = folder / "src"
    subprocess.run(["cp", "-r", str(against.ROOT / "src"), str(source)], check=True)
    return source


def test_an_old_version_without_later_features_can_be_compared(tmp_path: Path):
    """The cases are found with the public names of the first version only."""
    names = "class Receiver: ...\nclass AsyncReceiver: ...\nclass Inbox: ...\n"
    (tmp_path / "twicesafe").mkdir()
    (tmp_path / "twicesafe" / "__init__.py").write_text(names)
    with against.Side(tmp_path) as old:
        assert old.library == tmp_path / "twicesafe"


def test_each_side_runs_its_own_version(tmp_path: Path):
    """The old version refuses what the new one does: the row says so, and the other cases go on."""
    old = copy_of_the_library(tmp_path)
    with (old / "twicesafe" / "receiver" / "__init__.py").open("a") as receiver:
        receiver.write("\ndel Receiver.process\n")
    sources = {"old": old, "new": against.ROOT / "src"}
    cases = [case_of(QUICK), case_of("memory/async/duplicate/1")]

    gone, there = against.compare(cases, sources, tmp_path, blocks=6, pairs=2, lap=0.0005)

    assert gone.verdict == "not there"
    assert gone.absent.startswith("old: AttributeError")
    assert len(there.pairs[0]) == 6
    assert there.verdict in ("slower", "faster", "same")


def test_more_than_three_times_the_work_is_slower(tmp_path: Path):
    """The one change that no noise hides. It shows that new is divided by old, not old by new."""
    new = copy_of_the_library(tmp_path)
    with (new / "twicesafe" / "receiver" / "__init__.py").open("a") as receiver:
        receiver.write(
            "\n_once = Receiver.process\n"
            "def _often(self, key, *args):\n"
            "    for n in range(9):\n"
            "        _once(self, f'{key}-{n}', *args)\n"
            "    return _once(self, key, *args)\n"
            "Receiver.process = _often\n"
        )
    sources = {"old": against.ROOT / "src", "new": new}
    (row,) = against.compare([case_of(QUICK)], sources, tmp_path, blocks=6, pairs=2, lap=0.001)
    assert row.verdict == "slower"
    assert [len(blocks) for blocks in row.pairs] == [6, 12]


def test_the_command_compares_with_a_commit(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "found.json"
    status = program.main(["--against", "HEAD", LASTING, "--rounds", "6", "--json", str(out)])
    found = json.loads(out.read_text())
    (row,) = found["rows"]
    assert status == int(row["verdict"] == "slower")
    assert row["id"] == LASTING
    assert {"wall", "processor"} <= set(row)
    assert LASTING in capsys.readouterr().out


def test_an_unknown_commit_or_case_is_refused(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="git knows no src of no-such-commit"):
        program.main(["--against", "no-such-commit", QUICK])
    assert program.main(["--against", "HEAD", "no such case"]) == 2
    assert program.main([QUICK]) == 2
    assert "use --only" in capsys.readouterr().err


def test_ours_uses_public_names_only():
    """Old versions have other private names, so a case that used them could not run there."""
    for name in ("ours", "http_layer", "inbox", "embedded", "drivers", "networked"):
        text = (against.ROOT / "benchmarks" / f"{name}.py").read_text("utf-8")
        assert "twicesafe._" not in text, name
        assert "twicesafe.stores" not in text, name
