"""The site as a reader sees it: every page of `make docs`, in a real browser, at two widths."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag

import pytest

from tests.house.browser import Browser, opened, served
from tests.house.repository import ROOT
from tests.house.test_site import build

DESKTOP, PHONE = 1300, 400
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT / "mkdocs.yml", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def home(site: Path) -> Iterator[str]:
    with served(site) as url:
        yield url


@pytest.fixture(scope="module")
def seen(site: Path, home: str) -> tuple[dict[str, list[dict[str, Any]]], Browser]:
    pages = sorted(page.relative_to(site).as_posix() for page in site.rglob("*.html"))
    with opened(home) as browser:
        return {page: browser.look(page, DESKTOP, PHONE) for page in pages}, browser


def test_every_page_was_looked_at(seen: Any):
    looks, _ = seen
    assert len(looks) > 60
    assert {"index.html", "tutorial/index.html", "explanation/proof/index.html"} <= set(looks)


@pytest.mark.parametrize("which, width", [(0, DESKTOP), (1, PHONE)])
def test_no_page_scrolls_sideways(seen: Any, which: int, width: int):
    looks, _ = seen
    wide = {page: at[which]["page"] for page, at in looks.items() if at[which]["page"] > 0}
    assert wide == {}, f"wider than {width} px"


def test_code_fits_its_column_on_a_desktop(seen: Any):
    looks, _ = seen
    cut = {page: at[0]["code"] for page, at in looks.items() if at[0]["code"]}
    assert cut == {}


def test_no_picture_is_missing_and_none_is_raw_source(seen: Any):
    looks, _ = seen
    assert {page: at[0]["pictures"] for page, at in looks.items() if at[0]["pictures"]} == {}
    assert {page: at[0]["raw"] for page, at in looks.items() if at[0]["raw"]} == {}


def test_nothing_is_loaded_from_elsewhere_and_nothing_fails_to_load(seen: Any):
    _, browser = seen
    assert browser.left == []
    assert browser.failed == []


def test_no_link_leads_nowhere(seen: Any, site: Path, home: str):
    looks, _ = seen
    ids = {page: set(at[0]["ids"]) for page, at in looks.items()}
    dead = []
    for page, at in looks.items():
        for link in at[0]["links"]:
            if not link.startswith(home):
                continue
            address, anchor = urldefrag(link)
            path = unquote(address.removeprefix(home))
            target = f"{path}index.html" if path.endswith("/") or not path else path
            if not (site / target).exists():
                dead.append(f"{page}: {link}")
            elif anchor and target in ids and unquote(anchor) not in ids[target]:
                dead.append(f"{page}: {link} (no such heading)")
    assert dead == []


# ------------------------------------------------------------------ the checks themselves can fail


BAD = """<!doctype html><title>bad</title><body style="margin:0"><div style="width:2000px">wide</div>
<pre style="width:50px;overflow:hidden"><code style="display:block;overflow:auto">{line}</code></pre>
<img src="gone.svg"><div class="mermaid">graph TD</div><a href="nowhere/">dead</a>
<script src="http://elsewhere.invalid/x.js"></script></body>"""


def test_a_bad_page_would_be_seen(tmp_path: Path):
    (tmp_path / "index.html").write_text(BAD.format(line="x" * 300))
    with served(tmp_path) as home, opened(home) as browser:
        (at,) = browser.look("index.html", PHONE)
        assert at["page"] > 0
        assert at["code"] == ["x" * 60]
        assert at["pictures"] == [f"{home}gone.svg"]
        assert at["raw"] == ["graph TD"]
        assert browser.left == ["http://elsewhere.invalid/x.js"]
        assert browser.failed == [f"404 {home}gone.svg"]
