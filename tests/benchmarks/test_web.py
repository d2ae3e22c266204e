"""The HTTP cases run: servers come up, repeats are replays, and every lap counts answers."""

from __future__ import annotations

import shutil
from functools import partial

import pytest

from benchmarks import ours, web
from benchmarks.case import FLOOR


@pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk: not installed here")
@pytest.mark.parametrize("keys", ["fresh", "again"])
def test_a_lap_of_the_layer_and_of_the_bare_application(keys: str):
    words = {name: partial(web._app, name, "") for name in (FLOOR, ours.NAME)}
    running = [web.Server(name, make([])) for name, make in words.items()]
    try:
        laps = web._laps(running, keys, rounds=1)
    finally:
        for server in running:
            server.stop()
    for name in words:
        assert laps[name].failed == ""
        assert laps[name].laps[0].wall > 0


def test_every_case_has_its_own_name():
    names = [case.id for case in web.web()]
    assert len(names) == len(set(names))
    assert {"http/no-key", "http/valkey/first", "http/valkey/replay"} <= set(names)
