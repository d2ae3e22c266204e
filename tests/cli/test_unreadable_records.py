"""One record that cannot be read hides no other, and every view tells of it."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path

import pytest

from tests.cli.line import Line
from tests.regions.test_unreadable_records import damage
from twicesafe import AsyncReceiver, Key, Receiver

NAMED = Key("k1").id.hex()[:8]


@pytest.fixture
def damaged(line: Line) -> Line:
    with Receiver.open(line.url) as receiver:
        for number in range(3):
            receiver.process(f"k{number}", lambda: "v")
    damage(line.url, "k1")
    return line


@pytest.mark.parametrize("more", [(), ("--all",), ("--limit", "2")], ids=" ".join)
def test_keys_list_shows_the_others_and_names_it(damaged: Line, more: tuple[str, ...]):
    ran = damaged("keys", "list", *more)
    assert ran.status == 0
    assert "k2" in ran.out
    assert f"1 record cannot be read ({NAMED})" in ran.out
    found = json.loads(damaged("keys", "list", *more, "--json").out)
    assert [id_[:8] for id_ in found["unreadable"]] == [NAMED]
    assert {record["key"] for record in found["records"]} <= {"k0", "k2"}


@pytest.mark.parametrize("damaged_state", [True, False], ids=["state", "text"])
def test_keys_archive_moves_the_others_and_tells_of_it(
    line: Line, tmp_path: Path, damaged_state: bool
):
    _three_keys(line, *(("state", 99) if damaged_state else ("value", "k7")))
    words = (
        "keys",
        "archive",
        str(tmp_path / "a"),
        "--older-than",
        "0",
        "--by",
        "ana",
        "--why",
        "x",
    )
    ran = line(*words)
    assert ran.status == 1
    assert "2 answers archived" in ran.out
    names = "`twicesafe keys list --all` names them" if damaged_state else NAMED
    assert f"did not archive 1 unreadable record ({names})" in ran.err
    assert json.loads(line(*words, "--json").out)["unreadable_count"] == 1


def test_records_and_their_pages_leave_it_out_and_warn_of_it(
    damaged: Line, caplog: pytest.LogCaptureFixture
):
    async def listed() -> None:
        async with AsyncReceiver.open(damaged.url) as receiver:
            assert [record.value async for record in receiver.records()] == ["k2", "k0"]
            page, _ = await receiver.records_page()
            assert [record.value for record in page] == ["k2", "k0"]

    with Receiver.open(damaged.url) as receiver:
        assert [record.value for record in receiver.records()] == ["k2", "k0"]
        assert [record.value for record in receiver.records_page()[0]] == ["k2", "k0"]
    asyncio.run(listed())
    told = [one.getMessage() for one in caplog.records if one.name == "twicesafe"]
    left_out = [NAMED in each and "left out 1 unreadable record" in each for each in told]
    assert left_out == [True] * 4


def test_bulk_actions_change_the_others_and_name_it(damaged: Line):
    which = ("keys", "forget", "--since", "1d", "--by", "ana", "--why", "x")
    tried = damaged(*which, "--dry-run")
    assert f"1 record cannot be read ({NAMED})" in tried.out
    found = json.loads(damaged(*which, "--dry-run", "--json").out)
    assert [id_[:8] for id_ in found["unreadable"]] == [NAMED]
    done = damaged(*which, "--yes")
    assert "2 keys forgotten" in done.out
    assert f"1 record cannot be read ({NAMED})" in done.out


def test_its_id_is_not_said_to_be_missing(damaged: Line):
    ran = damaged("keys", "show", "--id", NAMED)
    assert ran.status == 1
    assert f"1 record cannot be read ({NAMED})" in ran.err


def test_stats_count_it(damaged: Line):
    assert "1 cannot be read" in damaged("stats").out
    found = json.loads(damaged("stats", "--json").out)
    assert (found["total"], found["unreadable"], found["by_state"]["completed"]) == (3, 1, 2)


def test_the_doctor_and_health_tell_of_it(damaged: Line):
    assert "1 of 3 records cannot be read" in damaged("doctor").out
    with Receiver.open(damaged.url) as receiver:
        health = receiver.health()
        assert (health.status, health["unreadable"].value) == ("degraded", 1)
        assert [record.value for record in receiver.records()] == ["k2", "k0"]
        assert receiver.stats().unreadable == 1


@pytest.mark.parametrize("text", ["x" * 5000, "k7"], ids=["too long", "of another key"])
def test_a_record_with_the_text_of_no_key_or_another_one_is_unreadable(line: Line, text: str):
    """It would be shown, released and copied as the record of that other key."""
    _three_keys(line, "value", text)
    with Receiver.open(line.url) as receiver:
        assert [record.value for record in receiver.records()] == ["k2", "k0"]
        assert receiver.record("k7") is None
    found = json.loads(line("keys", "list", "--json").out)
    assert [id_[:8] for id_ in found["unreadable"]] == [NAMED]


@pytest.mark.parametrize("time", [1 << 62, -(1 << 62)], ids=["late", "early"])
@pytest.mark.parametrize("column", ["created_at", "changed_at", "expires_at"])
def test_a_time_that_no_calendar_has_hides_no_other_record(line: Line, column: str, time: int):
    _three_keys(line, column, time)
    with Receiver.open(line.url) as receiver:
        assert {"k0", "k2"} <= {record.value for record in receiver.records()}
        receiver.record("k1")
        receiver.stats()


def _three_keys(line: Line, column: str, damaged: object) -> None:
    with Receiver.open(line.url) as receiver:
        for number in range(3):
            receiver.process(f"k{number}", lambda: "v")
    connection = sqlite3.connect(line.url.removeprefix("sqlite:///"))
    with connection:
        where = "WHERE id = ?"
        connection.execute(
            f"UPDATE twicesafe_keys SET {column} = ? {where}", (damaged, Key("k1").id[:16])
        )
    connection.close()
