"""``health``, ``alerts``, ``grafana``: what they print, and the exit status that scripts rely on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.line import Line, held
from twicesafe import Receiver
from twicesafe.observers._alerts import rules
from twicesafe.observers._grafana import dashboard
from twicesafe.stores._urls import SCHEMES


def test_a_healthy_store_is_status_0(line: Line, receiver: Receiver):
    receiver.process("k", int)
    ran = line("health")
    assert ran.status == 0
    assert "✓ ok" in ran.out
    assert "not known here: ask /health" in ran.out


def test_a_held_key_is_status_1_and_says_what_to_do(line: Line, receiver: Receiver):
    held(receiver, "k")
    ran = line("health")
    assert ran.status == 1
    assert "! degraded" in ran.out
    assert "--state held" in ran.out.replace("\n", " ")
    found = line("health", "--json")
    assert (found.status, found.data["status"]) == (1, "degraded")
    (check,) = [one for one in found.data["checks"] if one["name"] == "held"]
    assert (check["status"], check["value"], check["limit"]) == ("degraded", 1, 0)


def test_a_full_store_is_status_3(line: Line, receiver: Receiver):
    receiver.process("k", int)
    ran = line("health", "--max-bytes", "1", "--json")
    assert (ran.status, ran.data["status"]) == (3, "failing")


def test_a_silent_store_is_status_3(line: Line, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(SCHEMES, "silent", "tests.cli.ailing:SilentStore")
    ran = line("health", "--store", "silent://", store=False)
    assert ran.status == 3


@pytest.mark.parametrize("command, text", [("alerts", rules()), ("grafana", dashboard())])
def test_files_are_printed_or_written(line: Line, tmp_path: Path, command: str, text: str):
    assert line(command, store=False).out == text
    ran = line(command, "--write", str(tmp_path / "made"), store=False)
    assert (ran.status, (tmp_path / "made").read_text()) == (0, text)
    assert json.loads(line(command, "--json", store=False).out)["text"] == text


def test_a_file_that_cannot_be_written_is_an_error(line: Line, tmp_path: Path):
    ran = line("alerts", "--write", str(tmp_path), store=False)
    assert ran.status == 2
    assert str(tmp_path) in ran.err
