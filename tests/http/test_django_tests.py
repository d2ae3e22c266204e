"""A user's own tests, run by Django's test runner: they leave the real store alone, and each other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = """
import sys
from django.conf import settings
settings.configure(
    SECRET_KEY="tests", ROOT_URLCONF="project", INSTALLED_APPS=[], USE_TZ=True,
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.db"}},
    MIDDLEWARE=["twicesafe.integrations.django.IdempotencyMiddleware"],
    TWICESAFE={"store": "sqlite:///keys.db", **SETTINGS},
)
import django
django.setup()
from django.http import HttpResponse
from django.urls import path

seen = []

def charge(request):
    seen.append(1)
    return HttpResponse(str(len(seen)))

async def charge_async(request):
    return charge(request)

urlpatterns = [path("charges", charge), path("charges-async", charge_async)]
if __name__ == "__main__":
    sys.modules["project"] = sys.modules["__main__"]
    from django.core.management import execute_from_command_line
    execute_from_command_line(sys.argv)
"""
TESTS = """
from django.test import SimpleTestCase
import project

class Charges(SimpleTestCase):
    def twice(self):
        replies = [self.client.post("/charges", headers={"Idempotency-Key": "k"}) for _ in range(2)]
        self.assertEqual(replies[0].content, replies[1].content)
        return "Idempotent-Replayed" in replies[0]

    def test_one(self):
        self.assertFalse(self.twice())

    def test_two(self):
        self.assertEqual(self.twice(), IS_SHARED)

    async def test_three(self):
        key = {"Idempotency-Key": "a"}
        replies = [await self.async_client.post("/charges-async", headers=key) for _ in range(2)]
        self.assertEqual(replies[0].content, replies[1].content)
"""


@pytest.mark.parametrize(
    "settings, is_shared", [({}, False), ({"test_store": "sqlite:///t.db"}, True)]
)
def test_the_real_store_is_left_alone(settings: dict[str, str], is_shared: bool, tmp_path: Path):
    (tmp_path / "project.py").write_text(PROJECT.replace("SETTINGS", repr(settings)), "utf-8")
    (tmp_path / "tests.py").write_text(TESTS.replace("IS_SHARED", repr(is_shared)), "utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "project.py", "test", "tests"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Ran 3 tests" in done.stderr
    assert "not shared" not in done.stderr
    assert not (tmp_path / "keys.db").exists()
    assert (tmp_path / "t.db").exists() == is_shared
