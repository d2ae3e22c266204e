"""``manage.py twicesafe …`` and the system checks, in a project of its own."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from twicesafe import Policy, Receiver
from twicesafe.encryption import KeyRing

MANAGE = """
import sys
from django.conf import settings
OURS = "twicesafe.integrations.django.IdempotencyMiddleware"
LOGIN = "django.contrib.auth.middleware.AuthenticationMiddleware"
settings.configure(
    SECRET_KEY="tests", ROOT_URLCONF="manage", USE_TZ=True, DEBUG=False,
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django.contrib.sessions",
        "twicesafe.integrations.django"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.db"}},
    MIDDLEWARE=["django.contrib.sessions.middleware.SessionMiddleware", *ORDER],
    TWICESAFE=SETTING,
)
urlpatterns = []
if __name__ == "__main__":
    sys.modules["manage"] = sys.modules["__main__"]
    from django.core.management import execute_from_command_line
    execute_from_command_line(sys.argv)
"""
GOOD, BAD = "[LOGIN, OURS]", "[OURS, LOGIN]"


def manage(
    folder: Path,
    *words: str,
    store: str = "sqlite:///keys.db",
    order: str = GOOD,
    ring: str = "",
    setting: Any = None,
) -> subprocess.CompletedProcess[str]:
    setting = {"store": store, "encryption": ring or None} if setting is None else setting
    text = MANAGE.replace("ORDER", order).replace("SETTING", repr(setting))
    (folder / "manage.py").write_text(text)
    environment = {n: v for n, v in os.environ.items() if n != "TWICESAFE_STORE_URL"}
    return subprocess.run(
        [sys.executable, "manage.py", *words],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_every_command_runs_on_the_projects_store(tmp_path: Path) -> None:
    with Receiver.open(f"sqlite:///{tmp_path}/keys.db") as receiver:
        receiver.process("tx-1", str)
    ran = manage(tmp_path, "twicesafe", "keys", "list", "--value", "tx-1", "--json")
    assert ran.returncode == 0, ran.stderr
    assert [record["key"] for record in json.loads(ran.stdout)["records"]] == ["tx-1"]
    refused = manage(tmp_path, "twicesafe", "keys", "show", "tx-2")
    assert refused.returncode == 1
    assert "no record of this key" in refused.stderr


def test_call_command_takes_options_too(tmp_path: Path) -> None:
    """Django took the options for its own, and refused them."""
    with Receiver.open(f"sqlite:///{tmp_path}/keys.db") as receiver:
        receiver.process("tx-1", str)
    code = "from django.core.management import call_command as call; call('twicesafe', {})"
    ran = manage(
        tmp_path, "shell", "-c", code.format("'keys', 'list', '--value', 'tx-1', '--json'")
    )
    assert ran.returncode == 0, ran.stderr
    assert '"tx-1"' in ran.stdout
    refused = manage(tmp_path, "shell", "-c", code.format("'keys', 'show', 'tx-2', '--json'"))
    assert "CommandError: twicesafe ended with status 1" in refused.stderr


def test_commands_have_the_key_ring_of_the_project(tmp_path: Path) -> None:
    ring = tmp_path / "ring"
    ring.write_text(KeyRing.new_key("old"))
    policy = Policy(encryption=KeyRing.load(f"file:{ring}"))
    with Receiver.open(f"sqlite:///{tmp_path}/keys.db", policy=policy) as receiver:
        receiver.process("tx-1", lambda: 7)
    ring.write_text(f"{KeyRing.new_key('new')}\n{ring.read_text()}")
    words = ("keys", "reencrypt", "--by", "ana", "--why", "new key", "--json")
    ran = manage(tmp_path, "twicesafe", *words, ring=f"file:{ring}")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["rewritten"] == 1
    wrong = manage(tmp_path, "check", ring="file:/nowhere")
    assert wrong.returncode == 1
    assert "twicesafe.E001" in wrong.stderr


def test_check_says_what_is_wrong(tmp_path: Path) -> None:
    ran = manage(tmp_path, "check", store="memory://", order=BAD)
    assert "twicesafe.W001" in ran.stderr
    assert "twicesafe.W002" in ran.stderr
    wrong = manage(tmp_path, "check", store="nosuch://x")
    assert wrong.returncode == 1
    assert "twicesafe.E001" in wrong.stderr


def test_check_with_a_database_looks_for_the_tables(tmp_path: Path) -> None:
    empty = "sqlite:///keys.db?migrate=false"
    (tmp_path / "keys.db").touch()
    ran = manage(tmp_path, "check", "--database", "default", store=empty)
    assert (ran.returncode, "twicesafe.W004" in ran.stderr) == (0, True), ran.stderr
    assert manage(tmp_path, "twicesafe", "migrate", store=empty).returncode == 0
    ran = manage(tmp_path, "check", "--database", "default", store=empty)
    assert (ran.returncode, "twicesafe" in ran.stderr) == (0, False), ran.stderr


def test_check_of_a_newer_schema_does_not_advise_to_migrate(tmp_path: Path) -> None:
    Receiver.open(f"sqlite:///{tmp_path}/keys.db").close()
    with closing(sqlite3.connect(tmp_path / "keys.db")) as connection, connection:
        connection.execute("UPDATE twicesafe_meta SET schema = 99")
    ran = manage(tmp_path, "check", "--database", "default")
    assert "twicesafe.W004" in ran.stderr
    assert "upgrade twicesafe" in ran.stderr
    assert "twicesafe migrate" not in ran.stderr


def test_check_with_a_database_sees_the_url_as_the_first_request_does(tmp_path: Path) -> None:
    (tmp_path / "keys.db").touch()
    ran = manage(
        tmp_path, "check", "--database", "default", store="sqlite:///keys.db?timeout=5&timeout=6"
    )
    assert "twicesafe.W003" in ran.stderr
    assert "give it once" in ran.stderr


def test_a_fresh_project_migrates_and_a_check_creates_no_store(tmp_path: Path) -> None:
    ran = manage(tmp_path, "migrate", "--verbosity", "0")
    assert (ran.returncode, ran.stderr) == (0, "")
    (tmp_path / "keys.db").touch()
    ran = manage(tmp_path, "check")
    assert (ran.returncode, "twicesafe" in ran.stderr) == (0, False), ran.stderr
    assert (tmp_path / "keys.db").read_bytes() == b""


@pytest.mark.parametrize("order", [GOOD, "[LOGIN]"], ids=["middleware", "only commands"])
@pytest.mark.parametrize(
    "setting, says",
    [
        ("sqlite:///u:secret@keys.db", 'TWICESAFE = {"store": "sqlite:///keys.db"}'),
        ({"stor": "sqlite:///keys.db"}, "did you mean 'store'"),
        ({"store": None}, 'TWICESAFE = {"store": "sqlite:///keys.db"}'),
        ({"store": "sqlite:///keys.db", "policy": "strict"}, "a dict of HTTP settings"),
    ],
)
def test_a_setting_of_another_form_is_explained(
    tmp_path: Path, setting: Any, says: str, order: str
) -> None:
    """A URL in place of the dict ended every command of Django, `check` too, in an AttributeError. With a
    misspelt name, `manage.py twicesafe` silently took another store."""
    for words in (["check"], ["check", "--database", "default"]):
        ran = manage(tmp_path, *words, setting=setting, order=order)
        assert (ran.returncode, "twicesafe.E001" in ran.stderr) == (1, True), ran.stderr
    command = manage(tmp_path, "twicesafe", "stats", setting=setting)
    assert command.returncode == 1
    for said in (ran.stderr, command.stderr):
        assert says in said
        assert "Traceback" not in said
        assert "secret" not in said
