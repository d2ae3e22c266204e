"""The field: trials are listed, run, told and repeated; and what is broken does not pass them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from lab.__main__ import main
from lab.field import TRIALS, Trial, run_trial
from lab.field.page import field_page, trials_in_short
from lab.field.running import run_here, told
from lab.field.trial import trial
from lab.parts import Parts
from tests.stores.mongodb_sockets import sockets_of_the_driver  # noqa: F401 - an autouse fixture
from twicesafe._core.protocol import Claimed, Verdict
from twicesafe._engines.sql.outbox_programs import OutboxPrograms
from twicesafe._engines.sqlite import SqliteStore

QUICK = ("linearisable histories", "crash points")


@pytest.mark.parametrize("name", QUICK)
def test_a_trial_on_sqlite_is_sound(name: str):
    done = run_trial(name, "sqlite", seed=1, full=False)
    assert done.broken == []
    assert done.tried > 5


@pytest.mark.parametrize("name", ["cut replies", "crash points"])
@pytest.mark.parametrize("engine", ["valkey", "etcd", "mongodb"])
def test_a_trial_on_a_server_is_sound(name: str, engine: str, request: pytest.FixtureRequest):
    request.getfixturevalue(engine)
    done = run_trial(name, engine, seed=1, full=False)
    assert done.broken == []
    assert done.tried > 1


@pytest.mark.parametrize("engine", ["sqlite", "postgres", "valkey", "mariadb", "etcd", "mongodb"])
def test_a_payload_that_a_store_refuses_ends_its_key(engine: str, request: pytest.FixtureRequest):
    if engine != "sqlite":
        request.getfixturevalue(engine)
    done = run_trial("refused payloads", engine, seed=1, full=False)
    assert done.broken == []
    assert done.tried > 10


def test_the_inbox_on_a_cut_connection_is_sound(postgres: Any):
    done = run_trial("cut commits", "postgres", seed=1, full=False)
    assert done.broken == []
    assert done.tried > 30


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_lanes_are_in_order(engine: str, request: pytest.FixtureRequest):
    if engine != "sqlite":
        request.getfixturevalue(engine)
    done = run_trial("lane order", engine, seed=1, full=False)
    assert done.broken == []
    assert done.tried > 1000
    assert done.counts["refusals"]


def test_lanes_that_are_out_of_order_are_found(monkeypatch: pytest.MonkeyPatch):
    """Rows behind the refused one are fetched, as if their lane were in no trouble."""
    may_go = OutboxPrograms.may_go
    monkeypatch.setattr(
        OutboxPrograms,
        "may_go",
        lambda self: may_go(self).replace("IS NULL OR", "IS NULL OR o.n > t.n OR"),
    )
    assert run_trial("lane order", "sqlite", seed=1, full=False).broken


def _every_claim_wins(answer: Any) -> Any:
    return Claimed(Verdict.WON, 7, 1) if isinstance(answer, Claimed) else answer


def test_a_store_that_lets_everybody_win_is_found(monkeypatch: pytest.MonkeyPatch):
    perform = SqliteStore.perform
    monkeypatch.setattr(
        SqliteStore, "perform", lambda self, ask: _every_claim_wins(perform(self, ask))
    )
    done = run_trial("linearisable histories", "sqlite", seed=1, full=False)
    assert done.broken


def test_a_trial_that_cannot_go_on_is_broken(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("lab.field.histories.record", lambda *_: 1 / 0)
    done = run_trial("linearisable histories", "sqlite", seed=1, full=False)
    assert "ZeroDivisionError" in done.broken[0]


def test_what_broke_is_reported_with_the_command_that_repeats_it(
    capsys: pytest.CaptureFixture[str],
):
    done = Trial("zombies", "C7", "valkey", 5, True, broken=["a zombie spoke"])
    assert not told(done)
    said = capsys.readouterr().out
    assert "a zombie spoke" in said
    assert "python -m lab field 'zombies' --engine valkey --seed 5 --full" in said


def test_the_page_hides_nothing():
    counts = {"wait_replicas=0: lost, acknowledged during": 40}
    lost = Trial("failover", "C6", "valkey", 5, True, 20, "failovers", counts)
    broken = Trial("zombies", "C7", "valkey", 5, True, 9, "awakenings", broken=["a zombie spoke"])
    absent = Trial("zombies", "C7", "mariadb", 5, True, skipped="no mariadbd on this machine")
    trials = [lost, broken, absent]
    page = "\n".join([*trials_in_short(trials), *field_page(trials)])
    assert "lost, acknowledged during 40" in page
    assert "**1 of them broken**" in page
    assert "| Zombies | Valkey | 9 awakenings | **1** |" in page
    assert "**1**: a zombie spoke" in page
    assert "skipped: no mariadbd on this machine" in page


def test_the_same_seed_draws_the_same_chances():
    one, same, other = (Trial("soak", "C15", "valkey", seed, False).rng for seed in (1, 1, 2))
    assert one.random() == same.random() != other.random()


def test_trials_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    into = tmp_path / "found.json"
    words = ["field", "linearisable histories", "--engine", "sqlite", "--seed", "2"]
    assert main([*words, "--into", str(into)]) == 0
    (done,) = msgspec.json.decode(into.read_bytes(), type=list[Trial])
    assert done.tried
    assert main(["field", "no such"]) == 2
    assert "no such" in capsys.readouterr().err
    assert main(["field", "--list"]) == 0
    listed = capsys.readouterr().out
    assert [name for name in TRIALS if name not in listed] == []


# --- trials in portions --------------------------------------------------------------------------------


@pytest.fixture
def three_portions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A trial with nine steps in three portions; the list has the portions that were run."""
    ran: list[int] = []

    def run(t: Trial) -> None:
        """Does it run?"""
        ran.append(t.portion)
        t.tried = t.size(1, 9)
        t.count("steps", t.tried)
        t.expect(t.portion != 2 or t.seed != 13, "unlucky")

    trials = dict(TRIALS)
    monkeypatch.setattr("lab.field.trial.TRIALS", trials)
    monkeypatch.setattr("lab.field.running.TRIALS", trials)
    trial("walk", "C0", "steps", ("sqlite",), portions=3)(run)
    return ran


def test_portions_are_kept_one_by_one_and_added(three_portions: list[int], tmp_path: Path):
    parts = Parts(resume=True, folder=tmp_path)
    (broken,) = run_here(["walk"], ["sqlite"], 13, True, parts)
    assert (broken.tried, broken.broken, broken.counts["portions"]) == (9, ["unlucky"], 3)
    three_portions.clear()
    (done,) = run_here(["walk"], ["sqlite"], 1, True, parts)
    assert three_portions == [2], "only what had not been done"
    assert (done.tried, done.broken, done.counts["steps"]) == (9, [], 9)


def test_one_portion_is_run_alone_and_the_short_form_has_none(
    three_portions: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    parts = Parts(resume=False, folder=tmp_path)
    (done,) = run_here(["walk"], ["sqlite"], 13, True, parts, portions=[2])
    assert (done.tried, three_portions) == (3, [2])
    assert "--seed 13 --full --portion 2" in capsys.readouterr().out
    (small,) = run_here(["walk"], ["sqlite"], 13, False, parts)
    assert (small.tried, three_portions) == (1, [2, 0])
