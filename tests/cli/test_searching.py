"""Searching on the command line, actions on all keys that match, the audit log and `top`."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sqlite3
import threading
from typing import Any

import pytest
from rich.console import Console

from tests.cli.line import Line, held
from twicesafe import Key, Policy, Receiver, State, StoreUnavailableError
from twicesafe._cli import bulk_actions, stats

ACT = ("--by", "ana", "--why", "the bank is back")


def parked(receiver: Receiver, *names: str, scope: str = "acct_1") -> None:
    once = receiver.options(policy=Policy(max_attempts=1))

    def fails() -> None:
        raise TimeoutError("no answer")

    for name in names:
        with pytest.raises(TimeoutError):
            once.process(Key(name, (scope,)), fails)


def listed(line: Line, *words: str) -> list[str]:
    return [record["key"] for record in line("keys", "list", "--json", *words).data["records"]]


# --- list ------------------------------------------------------------------------------------


def test_list_by_value_error_cause_and_time(line: Line, receiver: Receiver):
    parked(receiver, "p-1", "p-2")
    for tenant in ("acct_1", "acct_2"):
        receiver.process(Key("tx-1", (tenant,)), str)
    assert listed(line, "--value", "tx-1") == ["tx-1", "tx-1"]
    assert listed(line, "--value", "tx-1", "--scope", "acct_2") == ["tx-1"]
    assert listed(line, "--error", "Timeout") == ["p-2", "p-1"]
    assert listed(line, "--since", "1h", "--state", "parked") == ["p-2", "p-1"]
    assert listed(line, "--older-than", "7d") == []
    assert listed(line, "--since", "2000-01-01", "--error", "Timeout") == ["p-2", "p-1"]
    assert listed(line, "--stuck") == listed(line, "--cause", "lease_expired") == []
    shown = line("keys", "list", "--state", "parked").out
    assert "last error" in shown
    assert "TimeoutError" in shown


@pytest.mark.parametrize(
    "words", [("--since", "7 days"), ("--older-than", "2026-13-01"), ("--since", "0")]
)
def test_a_time_that_is_none_is_status_2(line: Line, receiver: Receiver, words: tuple[str, ...]):
    assert line("keys", "list", *words).status == 2


# --- acts on all that match ------------------------------------------------------------------


def test_a_dry_run_counts_and_changes_nothing(line: Line, receiver: Receiver):
    parked(receiver, "a", "b", "c")
    ran = line("keys", "release", "--state", "parked", "--dry-run", *ACT)
    assert ran.status == 0
    assert "3 keys match" in ran.out
    assert receiver.count(state=State.PARKED) == 3
    data = line("keys", "release", "--state", "parked", "--dry-run", "--json", *ACT).data
    assert data == {"matched": 3, "dry_run": True, "released": 0, "unreadable": []}


@pytest.mark.parametrize("option", ["--value", "--error"])
@pytest.mark.parametrize("verb", ["release", "forget", "list"])
def test_an_empty_text_does_not_match_all_keys(
    line: Line, receiver: Receiver, verb: str, option: str
):
    """As in ``--value "$KEY"`` with a variable that is not set."""
    parked(receiver, "a", "b")
    act = () if verb == "list" else ("--yes", *ACT)
    ran = line("keys", verb, "--state", "parked", option, "", *act)
    assert ran.status == 2
    assert "is not valid" in ran.err
    assert receiver.count(state=State.PARKED) == 2


def test_in_a_script_many_keys_need_yes(line: Line, receiver: Receiver):
    parked(receiver, "a")
    ran = line("keys", "release", "--state", "parked", *ACT)
    assert ran.status == 2
    assert "add --yes" in ran.err
    assert receiver.count(state=State.PARKED) == 1


def test_all_that_match_are_released_and_each_act_is_audited(line: Line, receiver: Receiver):
    parked(receiver, "a", "b")
    parked(receiver, "other", scope="acct_2")
    receiver.process(Key("done", ("acct_1",)), str)
    words = ("--state", "parked", "--scope", "acct_1", "--rate", "1000/s", "--yes")
    ran = line("keys", "release", *words, *ACT)
    assert ran.status == 0, ran.err
    assert "2 keys released" in ran.out
    assert {r.value for r in receiver.records(state=State.RELEASED)} == {"a", "b"}
    assert receiver.count(state=State.PARKED) == 1
    log = line("audit", "--since", "1h", "--json").data["actions"]
    assert [(a["key"], a["action"], a["by"], a["why"]) for a in log] == [
        ("a", "release", "ana", "the bank is back"),
        ("b", "release", "ana", "the bank is back"),
    ]
    text = line("audit").out
    assert "ana" in text
    assert "release" in text


def test_the_summary_says_what_happened_to_each(
    line: Line, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
):
    """One is refused, one changes and one is gone between the listing and the act."""
    parked(receiver, "free", "changes", "goes")
    receiver.process(Key("done", ("acct_1",)), str)
    listed = bulk_actions._listed

    def listed_then_changed(*args: Any) -> Any:
        found = listed(*args)
        receiver.release(Key("changes", ("acct_1",)), by="ben")
        with contextlib.closing(sqlite3.connect("keys.db")) as database, database:
            database.execute("DELETE FROM twicesafe_keys WHERE value = 'goes'")
        return found

    monkeypatch.setattr(bulk_actions, "_listed", listed_then_changed)
    words = ("--scope", "acct_1", "--yes")
    ran = line("keys", "release", *words, "--json", *ACT)
    assert ran.status == 1
    counts = {
        name: ran.data[name] for name in ("matched", "released", "refused", "changed", "gone")
    }
    assert counts == {"matched": 4, "released": 1, "refused": 1, "changed": 1, "gone": 1}
    reasons = {detail["key"]: detail["reason"] for detail in ran.data["details"]}
    assert "add --force" in reasons["done"]
    assert "released now" in reasons["changes"]
    shown = line("keys", "release", "--state", "completed", "--yes", *ACT)
    assert shown.status == 1
    assert "0 keys released; 1 refused" in shown.out


def test_work_that_is_running_is_not_released_with_others(line: Line, receiver: Receiver):
    claim = receiver.claim(Key("running", ("acct_1",)))
    with claim:
        ran = line("keys", "release", "--scope", "acct_1", "--yes", *ACT)
        assert ran.status == 1
        assert "a worker is running it" in ran.out
        claim.complete("done")
    assert receiver.record(Key("running", ("acct_1",))).state is State.COMPLETED


def test_an_answer_to_an_old_question_changes_nothing(
    line: Line, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
):
    """While the question stands on the screen, another operator releases the key and a worker starts."""
    key = Key("tx-1")
    held(receiver, key)
    running = receiver.options(policy=Policy(in_flight="reject")).claim(key)

    def meanwhile(*_: Any) -> None:
        receiver.release(key, by="ben")
        running.__enter__()

    monkeypatch.setattr("twicesafe._cli.key_actions.ask", meanwhile)
    ran = line("keys", "release", "tx-1", *ACT)
    assert ran.status == 1
    assert "the record has changed since it was read" in ran.err
    running.complete("paid")
    running.__exit__(None, None, None)
    assert receiver.process(key, str).value == "paid"


def test_a_limit_takes_the_newest(line: Line, receiver: Receiver):
    parked(receiver, "a", "b", "c")
    ran = line("keys", "release", "--state", "parked", "--limit", "2", "--yes", *ACT)
    assert "3 keys match; this run takes the newest 2" in ran.out
    assert {r.value for r in receiver.records(state=State.PARKED)} == {"a"}


def test_resolve_and_forget_all_that_match(line: Line, receiver: Receiver):
    held(receiver, Key("h-1", ("acct_1",)))
    held(receiver, Key("h-2", ("acct_1",)))
    ran = line("keys", "resolve", "--state", "held", "--value", '"paid"', "--yes", *ACT)
    assert ran.status == 0, ran.err
    assert receiver.process(Key("h-1", ("acct_1",)), str).value == "paid"
    ran = line("keys", "forget", "--scope", "acct_1", "--yes", *ACT)
    assert "2 keys forgotten" in ran.out
    assert receiver.count(state=State.FORGOTTEN) == 2


def test_one_key_or_conditions_not_both(line: Line, receiver: Receiver):
    parked(receiver, "a")
    ran = line("keys", "release", "a", "--scope", "acct_1", "--state", "parked", *ACT)
    assert ran.status == 2
    assert "not both" in ran.err
    assert line("keys", "release", *ACT).status == 2


# --- stats and top ---------------------------------------------------------------------------


def test_stats_show_bytes_and_growth(line: Line, receiver: Receiver):
    for number in range(3):
        receiver.process(f"tx-{number}", str)
    data = line("stats", "--json").data
    assert data["bytes"] > 0
    assert data["bytes_per_key"] == data["bytes"] / 3
    assert data["late_duplicates"] == 0
    assert "bytes per key" in line("stats").out


def test_top_once_in_a_pipe(line: Line, receiver: Receiver):
    parked(receiver, "a")
    receiver.process("done", str)
    receiver.release("done", by="ana", why="again", force=True)
    ran = line("top", "--once")
    assert ran.status == 0
    for words in ("waits for an operator", "TimeoutError", "last actions", "again"):
        assert words in ran.out
    assert line("top", "--once", "--json").data["total"] == 2


@pytest.mark.parametrize("is_terminal, kind", [(True, "xterm"), (True, "dumb"), (False, "xterm")])
def test_top_goes_on_after_an_outage(
    line: Line, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, is_terminal: bool, kind: str
):
    """One answer that did not come ended it, in the middle of what the operator watched."""
    receiver.process("done", str)
    look, looks = stats._screenful, []

    def cut(*args: Any) -> Any:
        looks.append(1)
        if len(looks) == 1:
            raise StoreUnavailableError("the server did not answer")
        os.kill(os.getpid(), signal.SIGTERM)
        return look(*args)

    monkeypatch.setattr(stats, "_screenful", cut)
    monkeypatch.setattr("rich.console.Console.is_terminal", is_terminal)
    monkeypatch.setenv("TERM", kind)
    ran = line("top", "--every", "0.2")
    assert ran.status == 0
    assert "completed" in ran.out
    assert "the server did not answer" in ran.out + ran.err
    assert "completed" in ran.out
    looks.clear()
    assert line("top", "--once").status == 3


def test_top_on_a_narrow_terminal_cuts_keys_and_errors_only(
    line: Line, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
):
    parked(receiver, "x" * 60)
    monkeypatch.setenv("COLUMNS", "50")
    (row,) = [row for row in line("top", "--once").out.splitlines() if "xxx" in row]
    assert re.fullmatch(r"[0-9a-f]{8}  parked  x+…x+  (now|\d+ s ago) *", row), row


@pytest.mark.parametrize("soon, said", [(0.0, True), (600.0, False)])
def test_a_long_search_on_a_terminal_says_that_it_still_reads(
    line: Line, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, soon: float, said: bool
):
    receiver.process("tx-1", int)
    monkeypatch.setattr("rich.console.Console.is_terminal", True)
    monkeypatch.setattr("twicesafe._cli.progress.SOON", soon)
    shown, page, status = threading.Event(), Receiver.records_page, Console.status

    def seen(console: Console, *words: Any, **more: Any) -> Any:
        shown.set()
        return status(console, *words, **more)

    def slow(*args: Any, **conditions: Any) -> Any:
        assert shown.wait(60 if said else 0) is said
        return page(*args, **conditions)

    monkeypatch.setattr(Console, "status", seen)
    monkeypatch.setattr(Receiver, "records_page", slow)
    ran = line("keys", "list")
    assert ("tx-1" in ran.out, "reading the records" in ran.err) == (True, said)
    assert "reading the records" not in line("keys", "list", "--json").err
