"""``make test ARGS=…`` runs in as many processes as it is worth."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.conftest import cores, pytest_xdist_auto_num_workers


def workers(*named: str, collectonly: bool = False) -> int:
    """How many for these arguments; without any, pytest gives the hook its `testpaths`."""
    asked = SimpleNamespace(args=named, option=SimpleNamespace(collectonly=collectonly))
    return pytest_xdist_auto_num_workers(asked)  # type: ignore[arg-type]


@pytest.mark.parametrize("named", [["tests"], ["tests/stores"], ["tests/unit", "tests/a.py"]])
def test_a_folder_has_two_per_core(named: list[str]):
    assert workers(*named) == min(2 * cores(), 8)


@pytest.mark.parametrize("named", [["tests/a.py"], ["tests/a.py::test_b[c]", "tests/d.py"]])
def test_files_and_single_tests_run_in_one_process(named: list[str]):
    assert workers(*named) == 0


def test_who_only_lists_needs_none():
    assert workers("tests", collectonly=True) == 0
