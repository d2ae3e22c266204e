"""The comparison of flows runs on ours, and names what it could not measure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.flows import __main__ as flows
from benchmarks.flows.contestants import CONTESTANTS, MissingError


@contextmanager
def absent(folder: Path) -> Iterator[tuple[str, int]]:
    raise MissingError("there is no such server here")
    yield "", 0


def test_a_killed_flow_goes_on_and_a_missing_peer_is_named(monkeypatch: pytest.MonkeyPatch):
    ours = CONTESTANTS[0]
    missing = replace(ours, name="another", place=absent)
    monkeypatch.setattr(flows, "CONTESTANTS", (ours, missing))
    (row,), left_out = flows.measured(flows=1, rounds=1)
    assert row.effects == [1, 1, 2, 1, 1]
    assert (row.milliseconds > 0, row.server_mb) == (True, 0)
    assert left_out == {"another": "there is no such server here"}
