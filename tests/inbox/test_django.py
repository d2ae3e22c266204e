"""Django with its own test runner, its migrations and `atomic`, on each of its databases."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

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


@pytest.mark.parametrize("engine", ENGINES)
def test_the_project_passes_its_own_tests(
    request: pytest.FixtureRequest, tmp_path: Path, engine: str
):
    url = "" if engine == "sqlite" else request.getfixturevalue(f"{engine}_url")
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.inbox.project.settings",
        "DATABASE": json.dumps(entry(engine, url, tmp_path)),
        "DATABASE_DRIVER": "pymysql" if engine == "mariadb" else "",
        "PYTHONWARNINGS": "default",
    }
    done = subprocess.run(
        [sys.executable, "-m", "django", "test", "tests.inbox.project.payments.tests", "--noinput"],
        env=environment,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    assert "Ran 7 tests" in done.stderr
