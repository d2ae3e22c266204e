"""``twicesafe plan``: what it prints, what it measures on a real store, and how it refuses nonsense."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.cli.line import Line
from twicesafe import Policy, Receiver, planning

GOLDEN = Path(__file__).parent / "golden"
ASKED = ("--rate", "500/s", "--duplicates", "2%", "--retries-within", "3d")
PRICED = ("--duplicate-price", "0.01", "--storage-price", "0.12", "--fixed-price", "20")
COUNT = 20_000


def asked(line: Line, *more: str, store: str = "postgresql://h/db"):
    return line("plan", *ASKED, *more, "--store", store, store=False)


def test_without_prices_it_says_that_costs_are_left_out(line: Line):
    text = " ".join(asked(line).out.split())
    assert "cost left out: add --duplicate-price and --storage-price, and --fixed-price" in text
    assert asked(line, "--json").data["cost"] is None
    assert "left out" not in asked(line, *PRICED).out


@pytest.mark.parametrize(
    "name, options",
    [
        ("plan", ()),
        ("plan_priced", PRICED),
        (
            "plan_redrives",
            ("--redrives", "1%", "--redrives-within", "30d", "--window", "7d", *PRICED),
        ),
    ],
)
def test_what_it_prints(
    line: Line, name: str, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
):
    """Golden: to accept a change, delete the file and run the test twice."""
    monkeypatch.setenv("COLUMNS", "110")
    ran = asked(line, *options)
    assert ran.status == 0, ran.err
    text = "".join(f"{row.rstrip()}\n" for row in ran.out.splitlines())
    path = GOLDEN / f"{name}.txt"
    if not path.exists():
        path.write_text(text)
        pytest.fail(f"{path} was written: look at it, and run the test again")
    assert text == path.read_text()


def test_it_does_not_open_the_store_that_it_plans_for(line: Line):
    assert asked(line, store="postgresql://127.0.0.1:1/nothing").status == 0
    assert asked(line, store=line.url).status == 0
    assert not Path("keys.db").exists()


def test_json_is_the_plan(line: Line):
    data = asked(line, "--json", "--window", "1d", *PRICED).data
    load = planning.Workload(rate=500, duplicates=0.02, delays=planning.BackoffDelays(within="3d"))
    prices = planning.Prices(duplicate=0.01, storage=0.12, fixed=20)
    expected = planning.plan(load, store="postgresql", window="1d", prices=prices).data()
    assert data == {**expected, "measured": None}


def test_the_window_is_the_retention_of_the_file(line: Line):
    Path("twicesafe.toml").write_text('[policy]\nretention = "2d"\n')
    assert asked(line, "--json").data["window"] == 172800


def test_a_wrong_path_for_the_charts_is_wrong_usage(line: Line):
    ran = asked(line, "--svg", "missing/plan.svg", *PRICED)
    assert ran.status == 2
    assert "No such file or directory: missing/plan.svg" in ran.err


def test_it_writes_an_svg(line: Line):
    assert asked(line, "--svg", "plan.svg", *PRICED).status == 0
    root = ET.parse("plan.svg").getroot()
    assert len(root.findall("{http://www.w3.org/2000/svg}polyline")) == 2


def test_ages_are_read_from_a_file(line: Line):
    Path("ages.txt").write_text("10\n1m\n\n1h\n2d\n")
    options = ("--rate", "5/s", "--duplicates", "1%", "--ages", "ages.txt", "--json")
    data = line("plan", *options, "--window", "1d").data
    assert data["duplicates"]["outside_window"] == 0.25
    assert data["duplicates"]["outside_window_at_most"] > 0.25
    Path("ages.txt").write_text("10\n5 mins\n")
    assert (
        "ages.txt:2: age='5 mins' is not a duration: did you mean '5m'?"
        in line("plan", *options).err
    )


@pytest.mark.parametrize(
    "options, told",
    [
        (("--rate", "500"), "'--rate': '500' is not a rate: write '500/s'"),
        (("--rate", "500 per second"), "write '500/s'"),
        (("--rate", "fast"), "write it like '500/s'"),
        (("--duplicates", "2"), "'--duplicates': '2' is not a share: write '2%'"),
        (("--duplicates", "2 percent"), "write '2%'"),
        (("--duplicates", "300%"), "share from 0 to 1"),
        (("--duplicates", "100%"), "duplicates=1.0"),
        (("--retries-within", "3 days"), "did you mean '3d'?"),
        (("--retries-within", "0"), "too small: use at least 1s"),
        (("--result", "4k"), "write '4KB'"),
        (("--risk", "tiny"), "'--risk'"),
        (("--mean-delay", "5m"), "not --retries-within and --mean-delay"),
        (("--redrives", "1%"), "--redrives-within 30d"),
        (("--storage-price", "1"), "--duplicate-price 25"),
        (("--window", "-1"), "--window"),
        (("--store", "postgress://h"), "did you mean 'postgres'?"),
        (("--ages", "nowhere"), "--ages"),
    ],
)  # fmt: skip
def test_nonsense_names_the_option_and_the_nearest_right_form(
    line: Line, options: tuple[str, ...], told: str
):
    ran = line("plan", *ASKED, *options, store=False)
    assert ran.status == 2, ran
    assert told in " ".join(ran.err.split())


def test_what_must_be_given(line: Line):
    assert "--rate 500/s" in line("plan", "--duplicates", "1%", "--mean-delay", "5m").err
    assert "--duplicates 2%" in line("plan", "--rate", "5/s", "--mean-delay", "5m").err
    assert "--retries-within 3d" in line("plan", "--rate", "5/s", "--duplicates", "1%").err


# ------------------------------------------------------------------ measured


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A SQLite store with many records."""
    url = f"sqlite:///{tmp_path_factory.mktemp('full')}/keys.db"
    with Receiver.open(f"{url}?synchronous=normal", policy=Policy(retention="2d")) as receiver:
        for start in range(0, COUNT, 5000):
            receiver.process_many(
                range(start, start + 5000), lambda n: "x" * 298, key=lambda n: f"order-{n:08d}"
            )
        receiver.process("one more", lambda: 1)
    return url


def test_a_real_store_is_measured(line: Line, full: str):
    options = ("--measure", "--duplicates", "2%", "--retries-within", "3d", "--store", full)
    ran = line("plan", *options, "--sample", str(2 * COUNT), "--json", store=False)
    assert ran.status == 0, ran.err
    measured = ran.data["measured"]
    assert measured["records"] == COUNT + 1
    assert measured["result"] == pytest.approx(301, abs=2)
    assert measured["key"] == pytest.approx(14, abs=0.1)
    assert measured["late"] == 0
    assert ran.data["window"] == 172800  # of the records, not of the policy here
    keys = measured["new_keys"]
    assert keys == pytest.approx(COUNT / measured["span"])
    sizes = {each["store"]: each for each in ran.data["storage"]}
    assert sizes["sqlite"]["records"] == pytest.approx(keys * (172800 + 300))
    # The file itself, if it kept as many records as it has now.
    size = Path(full.removeprefix("sqlite:///")).stat().st_size
    assert sizes["sqlite"]["bytes_per_key"] == pytest.approx(size / COUNT, rel=0.15)
    text = line("plan", *options, store=False).out
    assert "2,000 newest records" in text


def test_a_store_that_is_missing_or_empty(line: Line):
    options = ("plan", "--measure", "--duplicates", "2%", "--retries-within", "3d")
    assert line(*options).status == 3
    line("migrate")
    ran = line(*options)
    assert ran.status == 2
    assert "give it, like --rate 500/s" in ran.err
    assert line(*options, "--rate", "5/s").status == 0


def test_late_duplicates_are_shown(line: Line):
    with Receiver.open(line.url, policy=Policy(retention=0.001)) as receiver:
        receiver.process("tx-1", lambda: 1)
        while receiver.record("tx-1") is not None:
            pass
        receiver.options(policy=Policy(retention="1h")).process("tx-1", lambda: 1)
    ran = line("plan", *ASKED, "--measure")
    assert "1 of them are duplicates that came after the window and ran again" in " ".join(
        ran.out.split()
    )
