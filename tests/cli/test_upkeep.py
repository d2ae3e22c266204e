"""``stats``, ``sweep``, ``doctor``, ``migrate``, ``version``: numbers, words and exit status."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from typer.main import get_command

from tests.cli.line import Line, held
from twicesafe import Key, Policy, Receiver, StoreUnavailableError, __version__
from twicesafe._cli.app import app_of
from twicesafe._values.records import SweepReport
from twicesafe.stores._urls import SCHEMES

BY = ("--by", "ana", "--why", "asked")
EXPIRED = Policy(retention=0.001)


@pytest.fixture(autouse=True)
def ailing_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEMES, "ailing", "tests.cli.ailing:AilingStore")
    monkeypatch.setitem(SCHEMES, "silent", "tests.cli.ailing:SilentStore")


def expire(receiver: Receiver, number: int) -> None:
    brief = receiver.options(policy=EXPIRED)
    brief.process_many(range(number), lambda n: n, key=lambda n: f"old-{n}")
    while receiver.stats().expired < number:
        pass


# --- stats -----------------------------------------------------------------------------------


def test_stats_in_text_has_a_bar_per_state(line: Line, receiver: Receiver):
    receiver.process_many(range(40), lambda n: n, key=str)
    held(receiver, Key("one"))
    place, *lines = line("stats").out.splitlines()
    assert place == line.url
    rows = {row.split()[0]: row for row in lines}
    assert rows["completed"].split()[1:3] == ["40", "█" * 12]
    assert rows["held"].split()[1:3] == ["1", "▌"]  # something is never shown as nothing
    assert "█" not in rows["parked"]
    assert "▌" not in rows["parked"]
    assert all(len(row) <= 80 for row in rows.values())


def test_stats_as_json(line: Line, receiver: Receiver):
    receiver.process("a", lambda: 1)
    held(receiver, Key("b"))
    with receiver.claim("c"):
        data = line("stats", "--json").data
    assert data["total"] == 3
    assert data["by_state"] == {
        "in_progress": 1,
        "completed": 1,
        "failed": 0,
        "released": 0,
        "held": 1,
        "parked": 0,
        "suspended": 0,
        "forgotten": 0,
    }
    assert (data["stuck"], data["expired"]) == (0, 0)
    assert data["oldest_in_progress"].endswith("+00:00")


# --- sweep -----------------------------------------------------------------------------------


def test_sweep_removes_what_is_over_and_nothing_else(line: Line, receiver: Receiver):
    expire(receiver, 5)
    receiver.process("young", lambda: 1)
    assert line("sweep", "--limit", "2", "--json").data["removed"] == 2
    ran = line("sweep")
    assert "removed 3" in ran.out
    assert line("sweep", "--json").data == {"removed": 0, "examined": 1, "more": False}
    assert receiver.record("young") is not None


def test_a_long_sweep_on_a_terminal_is_cut_up_and_complete(
    line: Line, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
):
    expire(receiver, 2500)
    monkeypatch.setattr("rich.console.Console.is_terminal", True)
    monkeypatch.setenv("TERM", "dumb")
    bites: list[int | None] = []
    sweep = Receiver.sweep
    monkeypatch.setattr(
        Receiver, "sweep", lambda self, limit=None: bites.append(limit) or sweep(self, limit)
    )
    assert line("sweep", "--limit", "2200", "--json").data["removed"] == 2200
    assert bites == [1000, 1000, 200]
    assert line("sweep", "--json").data["removed"] == 300
    assert bites[3:] == [None]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_sweep_goes_on_until_it_is_stopped(line: Line, receiver: Receiver, number: int):
    expire(receiver, 3)
    command = [sys.executable, "-m", "twicesafe", "sweep", "--every", "0.05", "--json"]
    with subprocess.Popen([*command, "--store", line.url], stdout=subprocess.PIPE) as process:
        rounds = [json.loads(process.stdout.readline()) for _ in range(3)]
        process.send_signal(number)
        process.communicate(timeout=60)
    assert [r["removed"] for r in rounds] == [3, 0, 0]
    assert process.returncode == 0


def test_sweep_goes_on_after_an_outage(
    line: Line, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
):
    rounds: list[int] = []

    def swept(self: Receiver, limit: int | None = None) -> SweepReport:
        rounds.append(1)
        if len(rounds) == 1:
            raise StoreUnavailableError("the server did not answer")
        os.kill(os.getpid(), signal.SIGTERM)
        return SweepReport(removed=7, examined=7, more=False)

    monkeypatch.setattr(Receiver, "sweep", swept)
    ran = line("sweep", "--every", "0.05", "--json")
    assert ran.status == 0
    assert json.loads(ran.err)["error"]["type"] == "StoreUnavailableError"
    assert ran.data["removed"] == 7


# --- doctor ----------------------------------------------------------------------------------


def test_a_healthy_store(line: Line, receiver: Receiver):
    ran = line("doctor")
    assert ran.status == 0
    assert "✓" in ran.out
    data = line("doctor", "--json").data
    assert (data["healthy"], data["source"]) == (True, "--store")
    assert {finding["level"] for finding in data["findings"]} == {"ok"}


def test_a_refused_store_is_status_1_with_its_remedy(line: Line):
    ran = line("doctor", "--store", "ailing://", store=False)
    assert ran.status == 1
    assert "noeviction" in ran.out
    assert "\x1b" not in ran.out
    ran = line("doctor", "--store", "ailing://", "--json", store=False)
    assert ran.status == 1
    assert ran.data["healthy"] is False
    assert ran.data["findings"][2] == {
        "level": "refuse",
        "what": "it evicts live records",
        "remedy": "set maxmemory-policy noeviction",
    }


# --- migrate ---------------------------------------------------------------------------------


def test_migrate_is_the_other_half_of_not_migrating(line: Line, tmp_path: Path):
    (tmp_path / "keys.db").touch()
    url = f"{line.url}?migrate=false&timeout=3"
    refused = line("stats", "--store", url, "--json", store=False)
    assert refused.status == 3
    assert refused.fault["type"] == "SchemaVersionError"
    done = line("migrate", "--store", url, "--json", store=False).data["done"]
    assert [step.partition(" (")[0] for step in done] == [
        "twicesafe: schema 0 → 3",
        "twicesafe_runs: schema 0 → 1",
    ]
    assert line("stats", "--store", url, store=False).status == 0
    assert line("migrate", "--store", url, "--json", store=False).data["done"] == []
    assert "up to date" in line("migrate", "--store", url, store=False).out


def test_migrate_can_print_its_sql_instead(line: Line, tmp_path: Path):
    """What it prints makes a store that opens without migrating; it connects to nothing itself."""
    script = line("migrate", "--sql").out
    assert not (tmp_path / "keys.db").exists()
    with sqlite3.connect(tmp_path / "keys.db") as connection:
        connection.executescript(script)
    connection.close()
    with Receiver.open(f"{line.url}?migrate=false") as receiver:
        assert receiver.process("k", str, 1).value == "1"
    nowhere = "postgresql://u:secret@nowhere.invalid/db?schema=app&table=mine"
    ran = line("migrate", "--sql", "--json", "--store", nowhere, store=False)
    assert "CREATE TABLE app.mine_keys" in ran.data["sql"]
    assert "secret" not in ran.out + ran.err
    refused = line("migrate", "--sql", "--json", "--store", "memory://", store=False)
    assert refused.status == 2
    assert refused.fault["type"] == "UsageError"


# --- version, help, errors -------------------------------------------------------------------


def test_version(line: Line):
    for arguments in (("version",), ("--version",)):
        assert __version__ in line(*arguments, store=False).out
    assert line("version", "--json", store=False).data["version"] == __version__


def _commands() -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """The names of all commands, and those of groups."""
    found: list[tuple[str, ...]] = []
    groups: list[tuple[str, ...]] = [()]
    for name, command in get_command(app_of()).commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", None)
        found += [(name,)] if inner is None else [(name, each) for each in inner]
        groups += [] if inner is None else [(name,)]
    return found, groups


COMMANDS, GROUPS = _commands()


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_teaches_by_example(line: Line, command: tuple[str, ...]):
    ran = line(*command, "--help", store=False)
    assert ran.status == 0
    shown = " ".join(ran.out.partition("Example:")[2].split())
    assert f"twicesafe {' '.join(command)}" in shown
    assert "--json" in ran.out


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("command", [*GROUPS, *COMMANDS], ids=" ".join)
def test_help_breaks_a_line_only_where_the_terminal_ends(
    line: Line, command: tuple[str, ...], width: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", str(width))
    text = line(*command, "--help", store=False).out
    shown = [each.strip() for each in text.partition("╭")[0].splitlines()]
    for before, after in pairwise(shown):
        if before and after and not after.startswith("Example: "):
            assert len(f" {before} {after.split()[0]} ") > width, f"broken after: {before}"
        assert "Example: " not in after.removeprefix("Example: ")
    assert not re.search(r"<int[^>]*>", text), "N is shorter"
    assert not re.search(r"(?i)\bbool", text), "a switch takes no value"


def test_no_command_shows_what_there_is(line: Line):
    for arguments, named in (((), "dead-letters"), (("keys",), "release")):
        ran = line(*arguments, store=False)
        assert ran.status == 0
        assert ran.err == ""
        assert named in ran.out


@pytest.mark.parametrize(
    "arguments, status, kind",
    [
        (("nonsense",), 2, "UsageError"),
        (("stats", "--nonsense"), 2, "UsageError"),
        (("keys", "list", "--limit", "0"), 2, "UsageError"),
        (("sweep", "--every", "0"), 2, "UsageError"),
        (("stats", "--store", "oracle://x"), 2, "ConfigurationError"),
        (("stats", "--store", "sqlite:///a.db?nonsense=1"), 2, "ConfigurationError"),
        (("stats", "--store", "sqlite:///no/such/folder/a.db"), 3, "NotFound"),
        (("migrate", "--store", "sqlite:///no/such/folder/a.db"), 3, "StoreUnavailableError"),
        (("stats", "--store", "redis://:s3cret@[::1/0"), 2, "ConfigurationError"),
        (("stats", "--store", "sqlite:///a%00b.db"), 2, "ConfigurationError"),
        (("keys", "list", "--after", "9" * 20, "--store", "sqlite:///here.db"), 2, "UsageError"),
        (("migrate", "--outbox", "--store", "memory://"), 2, "UsageError"),
        (("stats", "--store", "silent://"), 3, "StoreUnavailableError"),
        (("keys", "list", "--store", "silent://"), 3, "StoreUnavailableError"),
        (("sweep", "--store", "silent://"), 3, "StoreUnavailableError"),
    ],
)
def test_errors_have_their_status_in_text_and_json(
    line: Line, arguments: tuple[str, ...], status: int, kind: str
):
    line("migrate", "--store", "sqlite:///here.db", store=False)
    text = line(*arguments, store=False)
    assert text.status == status
    assert text.out == ""
    assert text.err.startswith("✗ ")
    assert "Traceback" not in text.err
    ran = line(*arguments, "--json", store=False)
    assert ran.status == status
    assert (ran.fault["type"], ran.fault["exit"]) == (kind, status)
    assert ran.fault["message"]
    assert ran.fault["retryable"] is (kind == "StoreUnavailableError")


@pytest.mark.parametrize(
    "command",
    [
        ("stats",), ("doctor",), ("keys", "list"), ("keys", "show", "tx-1"), ("outbox", "status"),
        ("outbox", "parked"), ("sweep",), ("keys", "release", "tx-1", *BY),
        ("keys", "resolve", "tx-1", "--value", "1", *BY), ("keys", "forget", "tx-1", *BY),
        ("keys", "signal", "tx-1", "--name", "paid", "--value", "1", *BY),
        ("keys", "skip", "tx-1", "--step", "pay", "--value", "1", *BY),
        ("keys", "restart", "tx-1", *BY),
    ],
    ids=lambda command: " ".join(command[:2]),
)  # fmt: skip
def test_a_command_of_an_operator_makes_no_store(
    line: Line, command: tuple[str, ...], tmp_path: Path
):
    """A slip in the path is no store without keys."""
    ran = line(*command, "--json")
    assert ran.status == 3
    assert line.url in ran.fault["message"]
    assert f"`twicesafe migrate --store {line.url}`" in ran.fault["message"]
    assert list(tmp_path.iterdir()) == []


def test_without_a_store_url_it_says_how_to_name_one(
    line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("TWICESAFE_STORE_URL", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    ran = line("keys", "list", "--json", store=False)
    assert ran.status == 3
    assert "name yours with --store or TWICESAFE_STORE_URL" in ran.fault["message"]
    assert "`twicesafe migrate`" in ran.fault["message"]


def test_a_home_that_cannot_be_used_is_reported(
    line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").touch()
    monkeypatch.delenv("TWICESAFE_STORE_URL", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    ran = line("stats", "--json", store=False)
    assert (ran.status, ran.fault["type"]) == (2, "ConfigurationError")
    assert "give a store URL" in ran.fault["message"]


def test_trouble_with_a_file_is_one_line_however_long(
    line: Line, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
):
    def failing(*_: object) -> None:
        raise OSError(28, "No space left on device", "/var/" + "x" * 100)

    monkeypatch.setattr(Receiver, "_together", failing)
    ran = line("stats")
    assert ran.status == 3
    assert ran.err == f"✗ No space left on device: /var/{'x' * 100}\n"


def test_a_password_in_the_url_is_not_shown(line: Line, monkeypatch: pytest.MonkeyPatch):
    for url in ("silent://me:hunter2@server/db", "oracle://me:hunter2@server/db"):
        monkeypatch.setenv("TWICESAFE_STORE_URL", url)
        for command in ("stats", "doctor"):
            ran = line(command, "--json", store=False)
            assert "hunter2" not in ran.out + ran.err


# --- as a process ----------------------------------------------------------------------------


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_it_says_what_to_install(missing: str):
    ran = run(
        f"import sys; sys.modules[{missing!r}] = None\n"
        "from twicesafe._cli import main; sys.exit(main(['stats']))"
    )
    assert ran.returncode == 2
    assert missing in ran.stderr
    assert "twicesafe[cli]" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_reader_that_leaves_early_is_no_disaster(line: Line, receiver: Receiver):
    receiver.process_many(range(3000), lambda n: n, key=str)
    command = [sys.executable, "-m", "twicesafe", "keys", "list", "--all", "--json"]
    with subprocess.Popen(
        [*command, "--store", line.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        process.stdout.close()
        errors = process.stderr.read()
    assert errors == b""
    assert process.returncode == 141


def on_terminal(command: list[str], **environment: str) -> str:
    """What a command prints on its own terminal."""
    import pty

    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "twicesafe", *command],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm-256color", **environment},
    ):
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 4096):
                shown += part
        except OSError:
            pass  # Linux says EIO where others say the end
        finally:
            os.close(ours)
    return shown.decode()


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_styles_on_a_terminal_only_and_not_against_no_color(
    line: Line, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
):
    for variable in ("NO_COLOR", "FORCE_COLOR", "TWICESAFE_STORE_URL"):
        monkeypatch.delenv(variable, raising=False)
    receiver.process("tx-1", lambda: 1)
    command = ["keys", "list", "--store", line.url]
    green = "\x1b[32m"
    assert green in on_terminal(command)
    assert green not in on_terminal(command, NO_COLOR="1")
    assert "\x1b" not in line("keys", "list").out
