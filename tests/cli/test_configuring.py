"""``twicesafe config``, and the commands that take their settings from the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.line import Line
from twicesafe import Receiver

GOOD = """\
store:
  url: sqlite:///keys.db
policy:
  retention: 7d
relay:
  to: nats://me:hush@localhost
sweep:
  limit: 3
"""
BAD = """\
[stroe]
[relay]
lease = "1 min"
bach = 5
"""


def test_check(line: Line):
    Path("twicesafe.yaml").write_text(GOOD)
    ran = line("config", "check", store=False)
    assert (ran.status, ran.out) == (0, "✓ twicesafe.yaml is valid: 4 settings\n")
    assert line("config", "check", "--json", store=False).data == {
        "file": "twicesafe.yaml", "valid": True, "settings": 4, "problems": [],
    }  # fmt: skip
    Path("bad.toml").write_text(BAD)
    ran = line("config", "check", "--config", "bad.toml", store=False)
    assert ran.status == 2
    assert ran.out.splitlines() == [
        "✗ bad.toml:1: there is no section 'stroe'; did you mean 'store'?",
        "✗ bad.toml:3: [relay] lease='1 min' is not a duration: did you mean '1m'?",
        "✗ bad.toml:4: there is no setting in [relay] 'bach'; did you mean 'batch'?",
    ]
    ran = line("config", "check", "--config", "bad.toml", "--json", store=False)
    assert (ran.status, ran.data["valid"], len(ran.data["problems"])) == (2, False, 3)


def test_check_takes_the_file_as_an_argument_too(line: Line, tmp_path: Path):
    file = tmp_path / "shop.yaml"
    file.write_text("policy:\n  retention: 7d\n")
    ran = line("config", "check", str(file), store=False)
    assert (ran.status, "shop.yamlisvalid" in "".join(ran.out.split())) == (0, True)  # wrapped
    ran = line("config", "check", str(file), "--config", str(file), store=False)
    assert ran.status == 2
    assert "FILE or --config, not both" in ran.err


def test_check_names_what_is_wrong_in_every_section(line: Line, tmp_path: Path):
    """A value of the wrong kind in one section hid the impossible values of all others."""
    file = tmp_path / "shop.toml"
    file.write_text('[polcy]\n[policy]\nretention = "7x"\n[relay]\nlease = "0s"\n')
    wrong = line("config", "check", str(file), "--json", store=False).data["problems"]
    assert [each.partition(": ")[0].rpartition(":")[2] for each in wrong] == ["1", "3", "5"]


def test_show(line: Line, monkeypatch: pytest.MonkeyPatch):
    Path("twicesafe.yaml").write_text(GOOD)
    monkeypatch.setenv("TWICESAFE_SWEEP_EVERY", "5m")
    ran = line("config", "show", "--changed", "--json", "--store", "redis://h/0", store=False)
    rows = {
        f"{r['section']}.{r['setting']}": (r["value"], r["from"], r["place"])
        for r in ran.data["settings"]
    }
    assert rows == {
        "store.url": ("redis://h/0", "option", "--store"),
        "policy.retention": ("7d", "file", "twicesafe.yaml:4"),
        "relay.to": ("nats://***@localhost", "file", "twicesafe.yaml:6"),
        "sweep.every": (300, "environment", "TWICESAFE_SWEEP_EVERY"),
        "sweep.limit": (3, "file", "twicesafe.yaml:8"),
    }
    text = line("config", "show", "sweep", store=False).out
    assert "TWICESAFE_SWEEP_EVERY" in text
    assert "hush" not in text
    assert "did you mean 'sweep'" in line("config", "show", "sweeep", store=False).err
    everything = line("config", "show", "--json", store=False).data["settings"]
    assert {row["section"] for row in everything} == {
        "store",
        "policy",
        "proxy",
        "http",
        "mcp",
        "relay",
        "consume",
        "sweep",
        "complete",
        "dashboard",
    }
    Path("twicesafe.yaml").write_text("http: {profile: 'webhook:github'}\n")
    assert line("config", "show", "http", "--json", store=False).status == 0


def test_the_check_of_a_proxy_finds_what_would_stop_its_start(line: Line):
    up = ("proxy", "--check", "--upstream", "http://127.0.0.1:9000")
    assert line(*up).status == 0
    assert list(Path().iterdir()) == []  # the store is not opened
    wrong = line(*up, "--store", "sqlit:///keys.db", store=False)
    assert (wrong.status, "did you mean 'sqlite:'" in wrong.err) == (2, True)


def test_schema(line: Line):
    assert line("config", "schema", store=False).data["properties"]["relay"]["properties"]["to"]


def test_sweep_takes_its_settings_from_the_file(line: Line):
    with Receiver.open(line.url) as receiver:
        for n in range(5):
            receiver.options(policy=receiver.policy.replace(retention=0.001)).process(
                f"{n}", lambda: 1
            )
        while receiver.stats().expired < 5:
            pass
    Path("twicesafe.yaml").write_text("sweep: {limit: 3}\n")
    assert line("sweep", "--json").data["removed"] == 3
    assert line("sweep", "--limit", "1", "--json").data["removed"] == 1


def test_relay_needs_a_broker_and_takes_it_from_the_file(line: Line):
    ran = line("relay")
    assert ran.status == 2
    assert "--to nats://localhost (or set TWICESAFE_RELAY_TO, or [relay] to)" in " ".join(
        ran.err.split()
    )
    Path("twicesafe.toml").write_text('[relay]\nto = "natz://localhost"\n')
    assert "'natz'" in line("relay").err
    assert "lease=0.1" in line("relay", "--to", "nats://h", "--lease", "0.1").err


def test_a_command_in_yaml(line: Line):
    with Receiver.open(line.url) as receiver:
        receiver.process("tx-1", lambda: 1)
    Path("twicesafe.yaml").write_text("store: {url: 'sqlite:///keys.db'}\n")
    ran = line("doctor", "--json", store=False)
    assert ran.data["source"] == "twicesafe.yaml:1"
