"""The site builds: no link leads nowhere, and no page is missing from the navigation."""

from __future__ import annotations

import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

from tests.house.repository import ROOT, name, pages, tracked_files


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    words = ["mkdocs", "build", "--strict", "-f", str(config), "--site-dir", str(site)]
    return subprocess.run(
        [sys.executable, "-m", *words],
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def test_a_dead_link_would_be_seen(tmp_path: Path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# T\n\n[gone](nowhere.md)\n")
    (tmp_path / "mkdocs.yml").write_text("site_name: t\n")
    done = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert done.returncode != 0
    assert "nowhere.md" in done.stdout + done.stderr


def test_links_of_the_readme_lead_somewhere():
    links = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / "README.md").read_text("utf-8"))
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


# ------------------------------------------------------------------ what pages name is there

FILE = re.compile(r"`((?:[\w-]+/)*[\w-]+\.(?:py|pml|txt))(?:::[^`]*)?`")
NAME = re.compile(r"`(twicesafe(?:\.\w+)+)(?:\(.*?\))?`")
PROOF = "docs/explanation/proof"
"""These pages name the files of the commit that was tried."""
THEIRS = {"env.py": "Alembic's, in the reader's project"}
NOT_PYTHON = re.compile(r"twicesafe\.(toml|ya?ml|schema\.json|db|stores|publishers|sources)$")
"""Files, and the entry-point groups, which are no modules."""


def named(pattern: re.Pattern[str]) -> list[tuple[str, str]]:
    texts = [*pages(), ROOT / "CONTRIBUTING.md"]
    found = {(name(page), word) for page in texts for word in pattern.findall(page.read_text())}
    return sorted(found)


def test_files_that_pages_name_are_there():
    paths = [f"/{name(path)}" for path in tracked_files()]
    gone = [
        (page, file)
        for page, file in named(FILE)
        if not page.startswith(PROOF)
        and file not in THEIRS
        and not any(path.endswith(f"/{file}") for path in paths)
    ]
    assert gone == []


def test_names_that_pages_give_can_be_imported():
    gone = [
        (page, dotted)
        for page, dotted in named(NAME)
        if not NOT_PYTHON.search(dotted) and not _exists(dotted)
    ]
    assert gone == []


def _exists(dotted: str) -> bool:
    try:
        pkgutil.resolve_name(dotted)
    except (ImportError, AttributeError):
        return False
    return True


def test_a_name_that_is_gone_would_be_seen():
    assert _exists("twicesafe.asgi.IdempotencyMiddleware")
    assert not _exists("twicesafe.asgi.Middleware")
    assert not _exists("twicesafe.nothing")
