"""Django with its own test runner, its migrations and `atomic`, on each of its databases."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from twicesafe import Inbox, Outbox, SchemaVersionError

ENGINES = {"postgres": "postgresql", "mariadb": "mysql", "sqlite": "sqlite3"}


def entry(engine: str, url: str, folder: Path) -> dict[str, Any]:
    if engine == "sqlite":
        files = {"NAME": str(folder / "shop.db"), "TEST": {"NAME": str(folder / "test.db")}}
        return {"ENGINE": "django.db.backends.sqlite3", "OPTIONS": {"timeout": 10}, **files}
    parts = urlsplit(url)
    return {
        "ENGINE": f"django.db.backends.{ENGINES[engine]}",
        "NAME": parts.path.lstrip("/"),
        "USER": parts.username or "",
        "HOST": parts.hostname,
        "PORT": str(parts.port),
        "TEST": {"NAME": f"test_{parts.path.lstrip('/')}"},
    }


class Project:
    """The small project on one of its databases; ``manage.py`` is a process, as ever."""

    def __init__(self, engine: str, url: str, folder: Path, **settings: Any) -> None:
        self.url = f"sqlite:///{folder / 'shop.db'}" if engine == "sqlite" else url
        self._environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.inbox.project.settings",
            "DATABASE": json.dumps(entry(engine, url, folder) | settings),
            "DATABASE_DRIVER": "pymysql" if engine == "mariadb" else "",
            "PYTHONWARNINGS": "default",
        }

    def manage(self, *words: str) -> str:
        return self._run("django", *words)

    def twicesafe(self, *words: str) -> str:
        return self._run("twicesafe", *words, "--store", self.url)

    def run(self, module: str) -> str:
        return self._run(module)

    def _run(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", *words],
            env=self._environment,
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-6000:]
        return done.stdout + done.stderr


@pytest.fixture(params=ENGINES)
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Project:
    engine = request.param
    url = "" if engine == "sqlite" else request.getfixturevalue(f"{engine}_url")
    return Project(engine, url, tmp_path)


def test_the_project_passes_its_own_tests(project: Project):
    """With an inbox at the top of a module; and the test database can be dropped afterwards."""
    said = project.manage("test", "tests.inbox.project.payments.tests", "--noinput")
    assert "Ran 13 tests" in said
    assert "being accessed by other users" not in said


FAIL = """
from django.db import connection, transaction
from tests.inbox.project.payments import handling
from twicesafe.integrations.django_inbox.models import Record

try:
    with transaction.atomic():
        handling.inbox.process(connection, "m-1", lambda: 1 // 0)
except ZeroDivisionError:
    handling.inbox.close()
print([record.attempt for record in Record.objects.all()])
"""


def test_the_own_connection_uses_the_options_of_the_database(postgres_url: str, tmp_path: Path):
    """Otherwise it does not find the tables, and a message that always fails is never parked."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA app")
    options = {"options": "-c search_path=app", "pool": {"min_size": 1}, "sslmode": "prefer"}
    project = Project("postgres", postgres_url, tmp_path, OPTIONS=options)
    project.manage("migrate")
    assert "[1]" in project.manage("shell", "-c", FAIL)


def test_a_path_may_have_characters_with_a_meaning_in_urls(tmp_path: Path):
    folder = tmp_path / "50%25 of #1?"
    folder.mkdir()
    project = Project("sqlite", "", folder)
    project.manage("migrate")
    assert "[1]" in project.manage("shell", "-c", FAIL)
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


def test_a_fresh_database_is_checked_and_migrated(project: Project):
    """The module with the inbox is the URLconf: every command loads it before there are tables."""
    project.manage("check")
    project.manage("makemigrations", "--check", "--dry-run")
    project.manage("migrate")
    with Inbox.open(f"{project.url}?migrate=false"), Outbox.open(f"{project.url}?migrate=false"):
        pass  # they know the schema
    project.manage("migrate", "twicesafe", "zero")
    with pytest.raises(SchemaVersionError):
        Inbox.open(f"{project.url}?migrate=false")


@pytest.mark.parametrize("first", ["django", "twicesafe"])
def test_both_may_migrate_in_either_order(project: Project, first: str):
    steps = [
        lambda: project.manage("migrate"),
        lambda: project.twicesafe("migrate", "--outbox"),
    ]
    for step in steps if first == "django" else reversed(steps):
        step()
    with Inbox.open(f"{project.url}?migrate=false"), Outbox.open(f"{project.url}?migrate=false"):
        pass
    assert "No migrations to apply" in project.manage("migrate")
    assert "up to date" in project.twicesafe("migrate", "--outbox")


def test_the_admin_shows_records_and_messages_and_changes_nothing(project: Project):
    said = project.run("tests.inbox.project.admin_site").splitlines()
    assert "record/ 200 1 True False" in said
    assert "record/?state=1 200 1 True False" in said
    assert "record/?state=4 200 0 True False" in said
    assert "outboxmessage/ 200 1 False False" in said
    assert "local time True" in said, "with USE_TZ off it showed UTC"
    assert "one 200 0 False False" in said, "neither does the page of one message show its key"
    refused = [line for line in said if line.endswith(" 403")]
    assert len(refused) == 3, said
