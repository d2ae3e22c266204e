"""``twicesafe keys``: finding, listing, showing; and the operator's acts with their trail."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest

from tests.cli.line import Line, held
from twicesafe import Key, Policy, Receiver, State

ACT = ("--by", "ana", "--why", "the bank says: not charged")
NASTY = "evil\x1b]0;owned\x07\x1b[31m\u202ered\u2066[bold]\r\nnext\x7f\x9b1m\\"
FIELDS = {
    "id", "key", "scope", "state", "attempt", "fence", "cause", "error", "created_at",
    "changed_at", "lease_until", "not_before", "expires_at", "result_bytes",
}  # fmt: skip


def fill(receiver: Receiver, number: int, *scope: str) -> None:
    for index in range(number):
        receiver.process(Key(f"tx-{index}", scope), lambda: "ok")


# --- list ------------------------------------------------------------------------------------


def test_list_shows_newest_first_in_text(line: Line, receiver: Receiver):
    fill(receiver, 3, "acct_1", "POST /charges")
    ran = line("keys", "list")
    assert ran.status == 0
    header, *rows = ran.out.splitlines()
    assert header.split() == ["id", "state", "key", "scope", "tries", "changed"]
    assert [row.split()[2] for row in rows] == ["tx-2", "tx-1", "tx-0"]
    assert "completed" in rows[0]
    assert rows[0].rstrip().endswith(("now", "ago"))
    assert "acct_1 ›" in rows[0]


def test_list_as_json_has_the_documented_fields(line: Line, receiver: Receiver):
    fill(receiver, 2, "acct_1")
    data = line("keys", "list", "--json").data
    assert data["after"] == ""
    assert [set(record) for record in data["records"]] == [FIELDS, FIELDS]
    first = data["records"][1]
    assert first["id"] == Key("tx-0", ("acct_1",)).id.hex()
    assert (first["key"], first["scope"], first["state"]) == ("tx-0", ["acct_1"], "completed")
    assert (first["attempt"], first["lease_until"]) == (1, None)


def test_list_by_state_and_scope(line: Line, receiver: Receiver):
    fill(receiver, 2, "acct_1")
    held(receiver, Key("stuck", ("acct_1",)))
    held(receiver, Key("stuck", ("acct_2",)))
    ran = line("keys", "list", "--state", "held", "--scope", "acct_2", "--json")
    assert [(r["key"], r["scope"]) for r in ran.data["records"]] == [("stuck", ["acct_2"])]
    assert line("keys", "list", "--state", "sleeping").status == 2


def test_list_by_several_states(line: Line, receiver: Receiver):
    for number in range(3):
        receiver.process(f"done-{number}", str)
        held(receiver, Key(f"held-{number}"))
    receiver.process("released", str)
    receiver.release("released", by="ann", force=True)
    both = ("--state", "held", "--state", "completed")
    expected = [f"{what}-{number}" for number in (2, 1, 0) for what in ("held", "done")]
    for words in ((), ("--all",)):
        found = line("keys", "list", *both, "--json", *words).data["records"]
        assert [record["key"] for record in found] == expected
    for limit in (1, 2, 3, 4, 6):
        pages, after = [], ""
        while True:
            words = ("--limit", str(limit), *(("--after", after) if after else ()))
            data = line("keys", "list", *both, "--json", *words).data
            pages += [record["key"] for record in data["records"]]
            after = data["after"]
            if not after:
                break
        assert pages == expected


def test_a_pipe_gets_whole_lines(line: Line, receiver: Receiver, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("COLUMNS")
    scope = ("acct_1", "POST /charges")
    receiver.process(Key("x" * 200, scope), str)
    _header, row = line("keys", "list", "--full").out.splitlines()
    assert "x" * 200 in row
    assert "acct_1 › POST /charges" in row


def test_a_mark_that_is_none_is_named_as_the_option(line: Line, receiver: Receiver):
    ran = line("keys", "list", "--after", "nonsense")
    assert (ran.status, "--after is not valid" in ran.err) == (2, True)


def test_pages_meet_without_gap_or_repeat(line: Line, receiver: Receiver):
    fill(receiver, 7)
    seen: list[str] = []
    after = ""
    for _ in range(4):
        page = line("keys", "list", "--limit", "2", "--after", after, "--json").data
        seen += [record["key"] for record in page["records"]]
        after = page["after"]
    assert after == ""
    assert seen == [f"tx-{n}" for n in reversed(range(7))]
    assert "--after" in line("keys", "list", "--limit", "2").out


@pytest.mark.parametrize("number", [0, 250])
def test_all_pages_in_one_go(
    line: Line, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, number: int
):
    monkeypatch.setattr("twicesafe._core.searching.PAGE", 60)
    receiver.process_many(range(number), lambda n: n, key=str)
    records = line("keys", "list", "--all", "--json").data["records"]
    assert sorted(int(r["key"]) for r in records) == list(range(number))
    text = line("keys", "list", "--all").out
    assert text.count("tries") == (1 if number else 0)
    assert len(re.findall(r"^[0-9a-f]{8} ", text, re.MULTILINE)) == number


def test_long_keys_are_shortened_unless_asked(line: Line, receiver: Receiver):
    long = "a" * 100 + "END"
    receiver.process(long, lambda: 1)
    short = line("keys", "list").out
    assert "…" in short
    assert "END" in short
    assert max(map(len, short.splitlines())) <= 80
    folded = "".join(line("keys", "list", "--full").out.split())
    assert folded.count("a") > 100


# --- show ------------------------------------------------------------------------------------


def test_show_in_text(line: Line, receiver: Receiver):
    key = Key("tx-1", ("acct_1", "POST /charges"))
    held(receiver, key)
    ran = line("keys", "show", "tx-1", "--scope", "acct_1", "--scope", "POST /charges")
    assert ran.status == 0
    for part in ("tx-1", "acct_1 › POST /charges", key.id.hex(), "held", "no operator"):
        assert part in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80


def test_show_never_prints_the_result(line: Line, receiver: Receiver):
    receiver.process("tx-1", lambda: "the secret answer")
    for extra in ((), ("--json",)):
        ran = line("keys", "show", "tx-1", *extra)
        assert "secret" not in ran.out + ran.err
    assert line("keys", "show", "tx-1", "--json").data["result_bytes"] > 0


def test_an_overdue_claim_says_so(line: Line, receiver: Receiver):
    brief = receiver.options(policy=Policy(lease=0.05))
    with brief.claim("tx-1") as claim:
        assert claim.is_new
        receiver._runtime.keeper.remove(claim._held)  # as a dead worker, it renews nothing
        while not claim.lost:
            pass
        # the store lets go a tenth of a lease after the worker does
        while "lease has expired" not in line("keys", "show", "tx-1").out:
            pass


def test_a_key_is_found_by_the_digits_of_its_id(line: Line, receiver: Receiver):
    fill(receiver, 5, "acct_1")
    wanted = Key("tx-3", ("acct_1",))
    for digits in (wanted.short, wanted.short.upper(), wanted.id.hex()):
        assert line("keys", "show", "--id", digits, "--json").data["key"] == "tx-3"


def test_unknown_keys_are_status_1(line: Line, receiver: Receiver):
    fill(receiver, 1, "acct_1")
    ran = line("keys", "show", "tx-0")  # the scope is missing
    assert ran.status == 1
    assert "scope" in ran.err
    assert ran.out == ""
    fault = line("keys", "show", "--id", "0" * 12, "--json").fault
    assert (fault["type"], fault["exit"]) == ("NotFound", 1)


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("tx-1", "--id", "01234567"),
        ("--id", "0123"),
        ("--id", "0123456x"),
        ("--id", "01234567", "--scope", "a"),
        ("",),
        ("k" * 256,),
    ],
)
def test_an_unclear_key_is_status_2(line: Line, receiver: Receiver, arguments: tuple[str, ...]):
    assert line("keys", "show", *arguments).status == 2
    assert line("keys", "show", *arguments, "--json").fault["exit"] == 2


def test_an_ambiguous_id_asks_for_more_digits(
    line: Line, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("twicesafe._cli.record_lookup.LEAST_DIGITS", 1)
    fill(receiver, 17)
    digits = [record.id.hex()[0] for record in receiver.records()]
    ran = line("keys", "show", "--id", max(digits, key=digits.count))
    assert ran.status == 2
    assert "more digits" in ran.err


# --- what senders may put into a key ---------------------------------------------------------


def is_harmless(text: str) -> bool:
    allowed = {"\n"}
    return all(c in allowed or (c.isprintable() and c not in "\u202e\u2066") for c in text)


@pytest.mark.parametrize("extra", [(), ("--json",), ("--full",)])
def test_nothing_in_a_key_reaches_the_terminal_raw(
    line: Line, receiver: Receiver, extra: tuple[str, ...]
):
    held(receiver, Key(NASTY, (NASTY,)))
    ran = line("keys", "list", *extra)
    assert ran.status == 0
    assert is_harmless(ran.out)
    assert "evil\\x1" in ran.out or "\\u001b" in ran.out


def test_show_and_acts_escape_too(line: Line, receiver: Receiver):
    held(receiver, Key(NASTY, (NASTY,)))
    which = (NASTY, "--scope", NASTY)
    released = line("keys", "release", *which, "--by", NASTY, "--why", NASTY)
    assert released.status == 0
    shown = line("keys", "show", *which)
    assert "\\x1b" in shown.out
    missing = line("keys", "show", "x", "--scope", NASTY)
    assert missing.status == 1
    for ran in (released, shown, missing, line("keys", "show", *which, "--json")):
        assert is_harmless(ran.out)
        assert is_harmless(ran.err)
    assert line("keys", "show", *which, "--json").data["key"] == NASTY  # JSON gives it back whole


def test_markup_in_a_key_is_text(line: Line, receiver: Receiver):
    receiver.process("[red]tx[/red] :smile:", lambda: 1)
    assert "[red]tx[/red]" in line("keys", "show", "[red]tx[/red] :smile:").out


# --- release, resolve, forget ----------------------------------------------------------------


def test_release_lets_the_next_delivery_run_and_is_kept(line: Line, receiver: Receiver):
    held(receiver, Key("tx-1"))
    ran = line("keys", "release", "tx-1", *ACT)
    assert (ran.status, ran.err) == (0, "")
    assert receiver.process("tx-1", lambda: "ran").value == "ran"
    shown = line("keys", "show", "tx-1")
    assert "the bank says: not charged" in shown.out
    audit = line("keys", "show", "tx-1", "--json").data["audit"]
    assert [{**entry, "at": ""} for entry in audit] == [
        {
            "at": "",
            "action": "release",
            "by": "ana",
            "why": "the bank says: not charged",
            "state_before": "held",
        }
    ]


def test_release_by_id_prints_the_new_record(line: Line, receiver: Receiver):
    held(receiver, Key("tx-1", ("acct_1",)))
    data = line("keys", "release", "--id", Key("tx-1", ("acct_1",)).short, *ACT, "--json").data
    assert set(data) == FIELDS
    assert (data["key"], data["state"], data["cause"]) == ("tx-1", "released", "operator")


@pytest.mark.parametrize("command", ["release", "resolve"])
@pytest.mark.parametrize(
    "given",
    [(), ("--by", "ana"), ("--why", "x"), ("--by", " ", "--why", "x"), ("--by", "a", "--why", "")],
)
def test_acts_need_who_and_why(
    line: Line, receiver: Receiver, command: str, given: tuple[str, ...]
):
    held(receiver, Key("tx-1"))
    value = ("--value", "1") if command == "resolve" else ()
    assert line("keys", command, "tx-1", *value, *given).status == 2
    assert receiver.record("tx-1").state is State.HELD
    assert receiver.audit("tx-1") == []


def test_a_completed_key_is_released_only_by_force(line: Line, receiver: Receiver):
    receiver.process("tx-1", lambda: "first")
    fault = line("keys", "release", "tx-1", *ACT, "--json").fault
    assert (fault["type"], fault["exit"]) == ("Refused", 1)
    assert "--force" in fault["message"]
    assert receiver.process("tx-1", lambda: "second").value == "first"
    assert line("keys", "release", "tx-1", *ACT, "--force").status == 0
    assert receiver.process("tx-1", lambda: "second").value == "second"


@pytest.mark.parametrize(
    "answer", [None, 0, "", False, "ch_42", {"id": [1, 2.5, None]}], ids=json.dumps
)
def test_resolve_records_the_answer(line: Line, receiver: Receiver, answer: object):
    held(receiver, Key("tx-1"))
    assert line("keys", "resolve", "tx-1", "--value", json.dumps(answer), *ACT).status == 0
    outcome = receiver.process("tx-1", lambda: pytest.fail("it must not run"))
    assert outcome.replayed
    assert outcome.value == answer
    assert type(outcome.value) is type(answer)


def test_resolve_reads_a_file_or_stdin(
    line: Line, receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "answer.json").write_text('{"id": "ch_1"}')
    held(receiver, Key("a"))
    held(receiver, Key("b"))
    assert line("keys", "resolve", "a", "--value-file", "answer.json", *ACT).status == 0
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'"ch_2"')))
    assert line("keys", "resolve", "b", "--value-file", "-", *ACT).status == 0
    assert receiver.process("a", dict).value == {"id": "ch_1"}
    assert receiver.process("b", str).value == "ch_2"


def test_without_a_stdin_no_question_is_asked_and_nothing_is_read(
    line: Line, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
):
    held(receiver, Key("a"))
    monkeypatch.setattr("sys.stdin", None)
    ran = line("keys", "resolve", "a", "--value-file", "-", *ACT, "--json")
    assert (ran.status, ran.fault["message"]) == (2, "cannot read -: stdin is closed")
    assert line("keys", "release", "a", *ACT).status == 0


@pytest.mark.parametrize(
    "value",
    [
        (),
        ("--value", "1", "--value-file", "x"),
        ("--value", "not json"),
        ("--value", "{"),
        ("--value", ""),
        ("--value-file", "no-such-file"),
        ("--value", '"\udcff"'),  # a byte that is no UTF-8, as the shell passes it
        ("--value-file", "latin-1.json"),
    ],
)
def test_a_wrong_answer_changes_nothing(line: Line, receiver: Receiver, value: tuple[str, ...]):
    held(receiver, Key("tx-1"))
    Path("latin-1.json").write_bytes(b'"\xff"')
    assert line("keys", "resolve", "tx-1", *value, *ACT).status == 2
    assert receiver.record("tx-1").state is State.HELD


def test_a_completed_key_cannot_be_resolved(line: Line, receiver: Receiver):
    receiver.process("tx-1", lambda: "first")
    fault = line("keys", "resolve", "tx-1", "--value", "2", *ACT, "--json").fault
    assert (fault["type"], fault["exit"]) == ("Refused", 1)
    assert receiver.process("tx-1", lambda: "second").value == "first"


def test_forget_erases_and_leaves_a_trail(line: Line, receiver: Receiver):
    receiver.process("ann@example.org", lambda: "her address")
    assert line("keys", "forget", "ann@example.org", "--by", "bo", "--why", "request 7").status == 0
    record = receiver.record("ann@example.org")
    assert record.state is State.FORGOTTEN
    assert "ann@" not in line("keys", "list").out
    data = line("keys", "show", "ann@example.org", "--json").data
    assert [(e["action"], e["by"]) for e in data["audit"]] == [("forget", "bo")]
    # by its digits the key text is gone, and with it the way to its trail
    by_id = line("keys", "show", "--id", record.short, "--json").data
    assert (by_id["key"], by_id["audit"]) == ("", None)
    assert "erased" in line("keys", "show", "--id", record.short).out
    assert line("keys", "forget", "--id", record.short, *ACT).status == 0
    assert line("keys", "release", "--id", record.short, *ACT).status == 1


@pytest.mark.parametrize(
    "act", [("release",), ("resolve", "--value", "1"), ("forget",)], ids=lambda act: act[0]
)
@pytest.mark.parametrize("which", [("tx-1",), ("--state", "held", "--yes")], ids=["one", "all"])
@pytest.mark.parametrize("missing", ["--by", "--why"])
def test_every_act_asks_who_and_why(
    line: Line, receiver: Receiver, act: tuple[str, ...], which: tuple[str, ...], missing: str
):
    held(receiver, Key("tx-1"))
    given = {"--by": "ana", "--why": "request 7"}
    rest = [text for name, value in given.items() if name != missing for text in (name, value)]
    for words in (rest, [*rest, missing, " "]):
        assert line("keys", *act, *which, *words).status == 2
    assert receiver.record("tx-1").state is State.HELD
    assert receiver.audit("tx-1") == []
    assert line("keys", *act, *which, "--by", "ana", "--why", "request 7").status == 0
    assert [(entry.by, entry.why) for entry in receiver.audit("tx-1")] == [("ana", "request 7")]


DAY = 86_400


def days_left(receiver: Receiver, key: str) -> int:
    record = receiver.record(key)
    return round((record.expires_at - record.changed_at).total_seconds() / DAY)


def test_forget_keeps_a_tombstone_as_long_as_the_record(line: Line, receiver: Receiver):
    long = receiver.options(policy=Policy(retention=30 * DAY))
    long.process("tx-1", lambda: "paid")
    until = f"kept until {receiver.record('tx-1').expires_at:%Y-%m-%d %H:%M:%S} UTC"
    for _ in range(2):  # the second time it was already forgotten
        assert until in " ".join(line("keys", "forget", "tx-1", *ACT).out.split())
    assert days_left(receiver, "tx-1") == 30


@pytest.mark.parametrize("act", [("resolve", "--value", "1"), ("forget",)], ids=lambda act: act[0])
@pytest.mark.parametrize("given, days", [((), 1), (("--retention", f"{45 * DAY}"), 45)])
def test_what_had_no_end_is_kept_by_the_policy_or_as_said(
    line: Line, receiver: Receiver, act: tuple[str, ...], given: tuple[str, ...], days: int
):
    held(receiver, Key("tx-1"))
    command, *value = act
    ran = line("keys", command, "tx-1", *value, *ACT, *given)
    assert "kept until" in ran.out
    assert days_left(receiver, "tx-1") == days


def test_a_release_is_not_kept(line: Line, receiver: Receiver):
    held(receiver, Key("tx-1"))
    assert "kept" not in line("keys", "release", "tx-1", *ACT).out


def test_a_retention_of_nothing_is_status_2(line: Line, receiver: Receiver):
    receiver.process("tx-1", lambda: 1)
    assert line("keys", "forget", "tx-1", "--retention", "0", *ACT).status == 2
    assert receiver.record("tx-1").state is State.COMPLETED


def test_work_in_progress_is_not_forgotten(line: Line, receiver: Receiver):
    with receiver.claim("tx-1") as claim:
        fault = line("keys", "forget", "tx-1", *ACT, "--json").fault
        claim.complete(1)
    assert (fault["type"], fault["exit"]) == ("Refused", 1)


# --- asking first ----------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    "typed, extra, status, state",
    [
        ("n\n", (), 1, State.HELD),
        ("y\n", (), 0, State.RELEASED),
        ("", ("--yes",), 0, State.RELEASED),
    ],
)
def test_a_terminal_is_asked_first(
    line: Line,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
    typed: str,
    extra: tuple[str, ...],
    status: int,
    state: State,
):
    held(receiver, Key("tx-1"))
    monkeypatch.setattr("sys.stdin", Terminal(typed))
    ran = line("keys", "release", "tx-1", *ACT, *extra)
    assert ran.status == status
    assert receiver.record("tx-1").state is state
    assert ("?" in ran.err) is not bool(extra)


def test_a_script_is_not_asked(line: Line, receiver: Receiver, monkeypatch: pytest.MonkeyPatch):
    receiver.process("tx-1", lambda: 1)
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    ran = line("keys", "release", "tx-1", *ACT, "--force")
    assert (ran.status, ran.err) == (0, "")


def test_an_archived_answer_is_found_in_its_archive(line: Line, receiver: Receiver, tmp_path: Path):
    receiver.process("tx-1", lambda: "secret answer")
    place = str(tmp_path / "archive")
    shown = line("keys", "show", "tx-1", "--archive", place, "--json").data
    assert shown["state"] == "completed"
    assert "archive" not in shown
    done = line("keys", "archive", place, "--older-than", "0", "--json", *ACT)
    counts = {"archived": 1, "changed": 0, "after": "", "unreadable": [], "unreadable_count": 0}
    assert done.data == counts
    assert line("keys", "show", "tx-1", "--json").data["state"] == "forgotten"
    (entry,) = receiver.audit("tx-1")
    assert (entry.action, entry.by, entry.why) == ("forget", ACT[1], ACT[3])
    assert line("keys", "archive", place, "--older-than", "0").status == 2  # who, and why?
    assert (
        line("keys", "archive", place, "--older-than", "0", "--by", " ", "--why", "x").status == 2
    )

    found = line("keys", "show", "tx-1", "--archive", place)
    assert "tx-1" in found.out
    assert "completed" in found.out
    assert "archived in day=" in found.out
    assert "secret answer" not in found.out
    digits = receiver.key("tx-1").id.hex()[:12]
    shown = line("keys", "show", "--id", digits, "--archive", place, "--json").data
    assert (shown["key"], shown["state"]) == ("tx-1", "completed")
    assert shown["archive"].startswith("day=")
    nowhere = line("keys", "show", "tx-9", "--archive", place)
    assert nowhere.status != 0
    assert "no record" in nowhere.err


# --- narrow terminals ------------------------------------------------------------------------


@pytest.mark.parametrize("width", [30, 40, 60, 80, 100, 200])
def test_a_list_fits_the_terminal_and_no_id_is_cut(
    line: Line, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, width: int
):
    monkeypatch.setenv("COLUMNS", str(width))
    held(receiver, Key("an-order-with-a-long-name", ("acct_7", "POST /charges")))
    receiver.process("tx-1", lambda: 1)
    (record,) = receiver.records(state="held")
    ran = line("keys", "list")
    lines = ran.out.splitlines()
    assert max(map(len, lines)) <= width
    assert [row.split()[0] for row in lines if record.short in row] == [record.short]
    assert ("state" in lines[0]) == (width >= 40)
    assert ("tries" in lines[0]) == (width >= 100)


@pytest.mark.parametrize("width", [30, 60, 100])
def test_a_count_is_whole_at_every_width(
    line: Line, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, width: int
):
    monkeypatch.setenv("COLUMNS", str(width))
    receiver.process_many([str(n) for n in range(12)], lambda m: m, key=lambda m: m)
    for words in (("stats",), ("top", "--once")):
        (completed,) = (row for row in line(*words).out.splitlines() if row.startswith("completed"))
        assert completed.split()[1] == "12"
        assert ("█" in completed) == (width >= 80)


def test_a_key_without_its_scope_is_found_by_the_command_that_the_error_names(
    line: Line, receiver: Receiver
):
    held(receiver, Key("tx 1", ("acct_7",)))
    ran = line("keys", "show", "tx 1")
    assert (ran.status, "`twicesafe keys list --value 'tx 1'`" in ran.err) == (1, True)
    assert "acct_7" in line("keys", "list", "--value", "tx 1").out


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_the_audit_says_who_and_why_at_every_width(
    line: Line, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, width: int
):
    held(receiver, "tx-1")
    line("keys", "release", "tx-1", "--by", "anastasia", "--why", "bank is back")
    monkeypatch.setenv("COLUMNS", str(width))
    said = line("audit").out
    assert max(map(len, said.splitlines())) <= width
    assert {"who", "why"} <= set(said.split())
    assert Key("tx-1").short in said
    assert ("anastasia" in said) == (width >= 60)
    assert ("bank is back" in said) == (width >= 60)
