"""``twicesafe follow MODULE:REGIONS``: the command knows the homes of keys, as `regions.follower` does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.line import Line
from tests.polling import until
from twicesafe import Key, Receiver
from twicesafe._core.regions.epochs import key_of
from twicesafe._core.regions.pausing import announce
from twicesafe.regions import Regions
from twicesafe.regions._performing import perform

PLACES = """
from twicesafe.regions import {kind}

regions = {kind}.open(
    {{"eu": "sqlite:///eu.db", "us": "sqlite:///us.db"}},
    register="sqlite:///register.db",
    home=lambda key: key.value[:2],
)
no_regions = 1
"""
MOVED, STAYS = Key("eu-1"), Key("us-1")
FROM_US = ("--from", "us", "--to", "eu")


@pytest.fixture(params=["Regions", "AsyncRegions"])
def places(
    request: pytest.FixtureRequest, line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """The keys of the home eu are being moved to the store eu; those of the home us are not."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    module = f"{request.param.lower()}_of_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{module}.py").write_text(PLACES.format(kind=request.param))
    with Receiver.open("sqlite:///eu.db") as receiver:
        perform(announce("here", key_of("default", "eu"), 2, 1), {"here": receiver.store})
    return f"{module}:regions"


def copied(key: Key) -> bool:
    with Receiver.open("sqlite:///eu.db") as receiver:
        return receiver.record(key) is not None


def test_unfinished_records_of_a_home_that_is_not_moved_are_copied(line: Line, places: str):
    with Receiver.open("sqlite:///us.db") as us, us.claim(MOVED), us.claim(STAYS):
        by_url = ("--from", "sqlite:///us.db", "--to", "sqlite:///eu.db", "--name", "us")
        ran = line("follow", *by_url, "--once", store=False)
        assert ran.status == 1
        assert "2 late" in ran.out
        assert "twicesafe follow MODULE:REGIONS --from REGION --to REGION" in " ".join(
            ran.err.split()
        )
        assert not copied(STAYS)
        ran = line("follow", places, *FROM_US, "--once", "--json", store=False)
        assert ran.status == 1
        assert json.loads(ran.out)["late"] == 1
    assert copied(STAYS)
    assert not copied(MOVED)


def test_the_progress_has_the_name_of_the_region(line: Line, places: str):
    with Receiver.open("sqlite:///us.db") as us:
        us.process(STAYS, lambda: "v")
    ran = line("follow", places, *FROM_US, "--once", store=False)
    assert ran.status == 0, ran.err
    with Regions.open(
        {"eu": "sqlite:///eu.db", "us": "sqlite:///us.db"}, register="sqlite:///register.db"
    ) as regions:
        assert regions.follower("us", "eu").lag() is not None


@pytest.mark.parametrize(
    "words, said",
    [
        (("--from", "us", "--to", "asia"), "there is no region 'asia'; known: eu, us"),
        (("--from", "us", "--to", "us"), "give two different ones"),
        ((*FROM_US, "--name", "us"), "--name and --overlap are those of your Regions"),
        ((*FROM_US, "--overlap", "9s"), "--name and --overlap are those of your Regions"),
    ],
)
def test_what_the_regions_do_not_have_is_refused(
    line: Line, places: str, words: tuple[str, ...], said: str
):
    ran = line("follow", places, *words, "--once", store=False)
    assert ran.status == 2
    assert said in " ".join(ran.err.split())


def test_another_object_is_refused(line: Line, places: str):
    module = places.partition(":")[0]
    ran = line("follow", f"{module}:no_regions", *FROM_US, "--once", store=False)
    assert ran.status == 2
    assert "has no Regions or AsyncRegions named 'no_regions'" in " ".join(ran.err.split())


def test_a_store_is_not_copied_to_itself(line: Line):
    """Its progress would say that another store was copied."""
    Receiver.open(line.url).close()
    urls = ("--from", line.url, "--to", line.url, "--name", "eu")
    ran = line("follow", *urls, "--once", store=False)
    assert ran.status == 2
    assert "give two different ones" in " ".join(ran.err.split())


def test_it_runs_until_sigterm(places: str, tmp_path: Path):
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "twicesafe",
            "follow",
            places,
            *FROM_US,
            "--every",
            "10ms",
            "--json",
        ],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        cwd=tmp_path,
    )
    assert process.stdout is not None
    out = process.stdout
    with Receiver.open("sqlite:///us.db") as us:
        us.process(STAYS, lambda: "v")
    until(lambda: json.loads(out.readline())["copied"] == 1)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 0
