"""Which store and which policy: which source wins, and the errors for a wrong file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.line import Line
from twicesafe import ConfigurationError, Policy, Receiver
from twicesafe._cli.settings import settle


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command_line_wins_over_variable_file_and_default(
    here: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch
):
    assert settle(None, None).source == "default"
    assert str(own_home) in settle(None, None).url
    (here / "twicesafe.toml").write_text('[store]\nurl = "sqlite:///file.db"\n')
    assert settle(None, None).url == "sqlite:///file.db"
    (here / "other.toml").write_text('[store]\nurl = "sqlite:///other.db"\n')
    assert settle(None, here / "other.toml").url == "sqlite:///other.db"
    monkeypatch.setenv("TWICESAFE_STORE_URL", "sqlite:///variable.db")
    assert settle(None, here / "other.toml").url == "sqlite:///variable.db"
    assert settle("sqlite:///option.db", here / "other.toml").url == "sqlite:///option.db"


def test_commands_follow_it(line: Line, here: Path, monkeypatch: pytest.MonkeyPatch):
    with Receiver.open(f"sqlite:///{here}/file.db") as receiver:
        receiver.process("tx-1", lambda: 1)
    (here / "elsewhere.toml").write_text('[store]\nurl = "sqlite:///file.db"\n')
    ran = line("stats", "--config", "elsewhere.toml", "--json", store=False)
    assert ran.data["total"] == 1
    monkeypatch.setenv("TWICESAFE_STORE_URL", "sqlite:///empty.db")
    line("migrate", store=False)
    assert line("stats", "--config", "elsewhere.toml", "--json", store=False).data["total"] == 0


def test_the_policy_of_the_file_is_used(line: Line, here: Path):
    (here / "twicesafe.toml").write_text(
        '[policy]\nlease = 5\nretention = 60\ntakeover = "hold"\n[policy.backoff]\nfirst = 1\n'
    )
    policy = settle(None, None).policy
    assert policy == Policy(lease=5, retention=60, takeover="hold", backoff=policy.backoff)
    assert policy.backoff.first == 1
    with Receiver.open(line.url) as receiver:
        receiver.process("tx-1", lambda: 1)
        line("keys", "release", "tx-1", "--force", "--by", "ana", "--why", "x")
        record = receiver.record("tx-1")
        assert (record.expires_at - record.changed_at).total_seconds() == 60


@pytest.mark.parametrize(
    "text, told",
    [
        ("[stores]\n", ["section 'stores'", "did you mean 'store'?"]),
        ("[store]\nurll = 'x'\n", ["[store]", "'urll'", "did you mean 'url'?"]),
        ("[store]\nurl = 3\n", ["[store] url=3", "quotes"]),
        ("store = 'sqlite:///a.db'\n", ["[store]"]),
        ("[policy]\nleese = 3\n", ["'leese'", "did you mean 'lease'?"]),
        ("[policy]\nlease = -1\n", ["[policy] lease=-1", "at least 0.05"]),
        ("[policy]\nlease = '30 secs'\n", ["[policy] lease='30 secs'", "did you mean '30s'?"]),
        ("[policy]\nlease = 60\nmax_lease = 30\n", ["max_lease=30", "lease=60"]),
        ("[policy]\nretry_horizon = 90000\n", ["retention", "retry_horizon=90000"]),
        ("[policy]\ntakeover = 'maybe'\n", ["takeover='maybe'", "retry, hold"]),
        ("[policy]\nremember = ['ValueError']\n", ["remember", "Receiver"]),
        ("[policy]\nbackoff = 3\n", ["[policy.backoff]"]),
        ("[policy.backoff]\nfirts = 3\n", ["did you mean 'first'?"]),
        ("[policy.backoff]\nfactor = '2'\n", ["factor='2'", "number"]),
        ("[policy.backoff]\njitter = 2\n", ["backoff.jitter=2", "0 to 1"]),
        ("not toml", ["not TOML"]),
    ],
)
def test_a_wrong_file_is_refused_by_name(line: Line, here: Path, text: str, told: list[str]):
    (here / "twicesafe.toml").write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        settle("memory://", None)  # even if the store is chosen elsewhere
    for part in ("twicesafe.toml", *told):
        assert part in str(caught.value)
    assert line("stats", "--json").fault["exit"] == 2


def test_a_named_file_must_exist(line: Line):
    ran = line("stats", "--config", "missing.toml")
    assert ran.status == 2
    assert "missing.toml" in ran.err
