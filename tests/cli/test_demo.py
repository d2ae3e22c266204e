"""``twicesafe demo``: the storm is real, the counting is strict, and the status tells the truth."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from tests.cli.line import Line
from twicesafe import Receiver
from twicesafe._demo import saga, show
from twicesafe._demo.bank import Charge, FencingBank, OpenBank, StaleFenceError
from twicesafe._demo.plan import MOST_REPEATS, DemoPlan
from twicesafe._demo.storm import Storm, StormError, Traffic
from twicesafe._demo.tally import count, is_explained
from twicesafe._demo.worker import DemoDelivery, DemoReport, DemoSetting

SMALL = ("demo", "--payments", "30", "--workers", "2", "--kill-every", "12", "--seed", "11")


# --- the command -----------------------------------------------------------------------------


def test_the_promises_hold_and_the_difference_shows(line: Line):
    ran = line(*SMALL, "--json", store=False)
    assert ran.status == 0
    data = ran.data
    assert (data["seed"], data["payments"], data["held"], data["broken"]) == (11, 30, True, [])
    runs = {run["mode"]: run for run in data["runs"]}
    assert list(runs) == ["lease", "fencing", "inbox", "without"]
    planned = data["planned_deliveries"]
    for run in runs.values():
        assert run["kills"] >= 1
        assert run["deliveries"] > planned  # what a killed worker had in hand came back
        assert run["lost"] == 0
    for mode in ("lease", "fencing"):
        run = runs[mode]
        assert run["unexplained"] == run["different_answers"] == 0
        assert run["replays"] >= planned - 30
        assert run["takeovers"] >= 1
    assert runs["lease"]["charges"] - 30 <= runs["lease"]["takeovers"]
    assert (runs["fencing"]["charges"], runs["fencing"]["doubled"]) == (30, 0)
    inbox = runs["inbox"]
    assert (inbox["charges"], inbox["doubled"], inbox["different_answers"]) == (30, 0, 0)
    assert inbox["replays"] >= planned - 30
    without = runs["without"]
    assert without["charges"] >= planned
    assert without["doubled"] > 20
    assert without["different_answers"] > 20
    assert without["overcharged_cents"] > 0
    saga = data["saga"]
    assert (saga["orders"], saga["kills"], saga["unfinished"], saga["wrong"]) == (24, 8, 0, 0)
    assert saga["shipped"] + saga["undone"] == 24
    assert saga["undone"] > 0
    assert saga["entries"] == 3 * saga["shipped"] + 4 * saga["undone"]
    assert saga["repeats"] == saga["kills"]


def test_the_table_is_readable_and_says_how_to_run_it_again(line: Line):
    ran = line("demo", "--payments", "8", "--workers", "2", "--kill-every", "0", store=False)
    assert ran.status == 0
    assert max(map(len, ran.out.splitlines())) <= 80
    assert "twicesafe demo --seed " in ran.out
    assert "--payments 8 --workers 2 --kill-every 0" in ran.out
    assert "guarantees held" in ran.out
    assert "does not guarantee" in " ".join(ran.out.split())


def test_records_stay_in_the_store_that_was_named(line: Line):
    arguments = ("demo", "--payments", "5", "--workers", "1", "--kill-every", "0", "--json")
    for _ in range(2):  # a second storm meets none of the first one's keys
        assert line(*arguments).data["held"]
    with Receiver.open(line.url) as receiver:
        assert receiver.stats().total == 5 * 2 * 2 + 5 * 2


def test_a_storm_never_goes_to_a_store_it_was_not_sent_to(
    line: Line, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TWICESAFE_STORE_URL", line.url)
    line("demo", "--payments", "2", "--workers", "1", "--kill-every", "0", store=False)
    assert line("stats").status == 3, "it was not made"


def test_a_store_of_one_process_is_refused(line: Line):
    ran = line("demo", "--store", "memory://", "--json", store=False)
    assert ran.status == 2
    assert "processes" in ran.fault["message"]


def test_checkouts_that_are_half_done_break_the_demo(line: Line, monkeypatch: pytest.MonkeyPatch):
    """Books that lost an entry: an order was charged, and neither shipped nor refunded."""
    entries = saga._Books.entries
    monkeypatch.setattr(
        saga._Books,
        "entries",
        lambda self: [each for each in entries(self) if each[1] not in ("ship", "refund")],
    )
    ran = line(*SMALL[:-1], "11", "--payments", "4", "--kill-every", "0", "--json", store=False)
    assert (ran.status, ran.data["broken"]) == (1, ["saga: 4 checkouts half done"])


TWICE = [("r1", 1, ""), ("r2", 2, "lease_expired")]


@pytest.mark.parametrize(
    "mode, made, answers, attempts, told",
    [
        ("lease", [], {"r1"}, 1, "lost"),
        ("lease", TWICE, {"r1"}, 1, "without a recorded reason"),
        ("lease", TWICE, {"r1", "r2"}, 2, "different answers"),
        ("fencing", TWICE, {"r1"}, 2, "checks fences"),
        ("lease", TWICE, {"r1"}, 2, None),
        ("fencing", TWICE[:1], {"r1"}, 1, None),
        ("inbox", TWICE, {"r1"}, 0, "without a recorded reason"),
        ("inbox", TWICE[:1], {"r1"}, 0, None),
        ("without", TWICE, {"r1", "r2"}, 0, None),  # nothing was promised there
    ],
)
def test_the_status_tells_whether_the_promises_held(
    line: Line,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    made: list[tuple[str, int, str]],
    answers: set[str],
    attempts: int,
    told: str | None,
):
    def staged(plan: DemoPlan, **_: object) -> show.Show:
        name = plan.payments[0].id
        good = [charge(name)], {"r1"}, 1
        runs = []
        for cast in ("lease", "fencing", "inbox", "without"):
            bad = [charge(name, fence, receipt, cause) for receipt, fence, cause in made]
            charges, said, starts = (bad, answers, attempts) if cast == mode else good
            tally = count(plan, Traffic(receipts={name: said}), charges, {name: starts})
            runs.append(show.DemoRun(cast, cast, cast, tally))
        return show.Show(plan, 1, runs)

    monkeypatch.setattr("twicesafe._cli.demo.play", staged)
    ran = line("demo", "--payments", "1", "--json", store=False)
    text = line("demo", "--payments", "1", store=False)
    assert ran.status == text.status == (0 if told is None else 1)
    assert ran.data["held"] is (told is None)
    assert [told in problem for problem in ran.data["broken"]] == ([] if told is None else [True])
    assert ("✗ a guarantee was broken" in text.out) is (told is not None)


# --- the plan --------------------------------------------------------------------------------


def test_a_seed_is_a_plan():
    assert DemoPlan.draw(5, 40, 10) == DemoPlan.draw(5, 40, 10)
    assert DemoPlan.draw(5, 40, 10) != DemoPlan.draw(6, 40, 10)
    plan = DemoPlan.draw(5, 200, 10)
    times = [plan.deliveries.count(index) for index in range(200)]
    assert (min(times), max(times)) == (1, MOST_REPEATS)
    assert len(plan.strikes) == len(plan.deliveries) // 10
    assert DemoPlan.draw(5, 40, 0).strikes == ()


# --- the banks -------------------------------------------------------------------------------


def charge(payment: str = "p1", fence: int = 1, receipt: str = "r1", cause: str = "") -> Charge:
    return Charge(payment, 100, receipt, fence, fence, cause)


def charges_of(bank: type[OpenBank | FencingBank], folder: Path) -> list[Charge]:
    """What a bank holds, read by a later reader."""
    with closing(bank(folder)) as books:
        return books.charges()


def test_the_open_bank_takes_every_charge(tmp_path: Path):
    with closing(OpenBank(tmp_path)) as bank:
        assert [bank.charge(charge(receipt=r)) for r in ("r1", "r2")] == ["r1", "r2"]
    assert [made.receipt for made in charges_of(OpenBank, tmp_path)] == ["r1", "r2"]


def test_the_fencing_bank_keeps_one_charge_and_refuses_old_fences(tmp_path: Path):
    with closing(FencingBank(tmp_path)) as bank:
        assert bank.charge(charge(fence=1)) == "r1"
        assert bank.charge(charge(fence=3, receipt="r2")) == "r1"  # a newer claim: what is there
        for stale in (1, 2, 3):
            with pytest.raises(StaleFenceError):
                bank.charge(charge(fence=stale, receipt="r3"))
    kept = charges_of(FencingBank, tmp_path)
    assert [(made.receipt, made.fence, made.repeats) for made in kept] == [("r1", 3, 1)]


# --- the counting ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "made, attempts, explained",
    [
        ([charge(fence=1), charge(fence=2, cause="lease_expired")], 2, True),
        ([charge(fence=1), charge(fence=2, cause="lease_expired")], 1, False),  # record knows less
        ([charge(fence=1), charge(fence=2)], 2, False),  # no cause
        ([charge(fence=2), charge(fence=2, cause="lease_expired")], 2, False),  # one claim, twice
        ([charge(fence=0), charge(fence=0)], 0, False),  # no twicesafe at all
    ],
)
def test_what_explains_a_repeat(made: list[Charge], attempts: int, explained: bool):
    assert is_explained(made, attempts) is explained


def test_the_tally_finds_every_kind_of_harm():
    plan = DemoPlan.draw(1, 4, 0)
    names = [payment.id for payment in plan.payments]
    answers = {names[0]: {"a"}, names[1]: {"b", "b2"}, names[2]: {"never charged"}}
    charges = [
        charge(names[0], receipt="a"),
        charge(names[1], receipt="b"),
        charge(names[1], 2, "b2", "lease_expired"),
        charge(names[2], receipt="c"),
    ]
    tally = count(plan, Traffic(receipts=answers), charges, dict.fromkeys(names, 2))
    assert (tally.charges, tally.doubled, tally.explained, tally.unexplained) == (4, 1, 1, 0)
    assert tally.lost == 2  # one answered with a receipt of no charge, one never heard of again
    assert tally.different_answers == 1
    assert tally.overcharged_cents == 100


# --- the processes ---------------------------------------------------------------------------


def test_a_worker_ends_with_its_parent_even_in_mid_work(tmp_path: Path):
    worker = subprocess.Popen(
        [sys.executable, "-m", "twicesafe._demo.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    )
    orders = (DemoSetting("open", str(tmp_path), 1), DemoDelivery(7, "p", 1, "after"))
    for order in orders:
        worker.stdin.write(msgspec.json.encode(order) + b"\n")
    said = [msgspec.json.decode(worker.stdout.readline(), type=DemoReport) for _ in range(3)]
    assert [report.what for report in said] == ["ready", "started", "struck"]
    assert worker.poll() is None
    worker.stdin.close()  # all that a dead parent does
    assert worker.wait(timeout=60) == 0
    worker.stdout.close()
    assert len(charges_of(OpenBank, tmp_path)) == 1


def test_workers_that_cannot_start_are_an_error_with_their_message(line: Line, tmp_path: Path):
    setting = DemoSetting("open", str(tmp_path), 1, url="oracle://nowhere")
    with pytest.raises(StormError, match="no store for 'oracle'"):
        Storm(DemoPlan.draw(1, 1, 0), setting, 1).rage()


def test_json_and_nothing_else_on_stdout():
    command = [sys.executable, "-m", "twicesafe", "demo", "--payments", "2", "--workers", "1"]
    ran = subprocess.run(
        [*command, "--kill-every", "0", "--json"], capture_output=True, timeout=60, check=True
    )
    assert json.loads(ran.stdout)["held"] is True
    assert ran.stderr == b""
