"""The site builds: no link leads nowhere, and no page is missing from the navigation."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.house.repository import ROOT


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    words = ["mkdocs", "build", "--strict", "-f", str(config), "--site-dir", str(site)]
    return subprocess.run(
        [sys.executable, "-m", *words],
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def test_the_site_builds(tmp_path: Path):
    done = build(ROOT / "mkdocs.yml", tmp_path / "site")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site" / "reference" / "lifecycle.svg").exists()
    assert not (tmp_path / "site" / "generate.py").exists()
    assert not (tmp_path / "site" / "drawing").exists()


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
