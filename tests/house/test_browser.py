"""The site as a reader sees it: every page of `make docs`, in a real browser, at two widths."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag

import pytest

from tests.house.browser import Looks, served
from tests.house.repository import ROOT
from tests.house.test_site import build

DESKTOP, PHONE = 1300, 400
pytestmark = pytest.mark.timeout(900)


def test_every_page_is_readable(tmp_path: Path):
    """One test, so that the site is built and looked at once, whatever the number of workers.

    Without a browser it still says whether the site builds.
    """
    done = build(ROOT / "mkdocs.yml", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "reference" / "lifecycle.svg").exists()
    assert not (tmp_path / "generate.py").exists()
    assert not (tmp_path / "drawing").exists()
    pages = sorted(page.relative_to(tmp_path).as_posix() for page in tmp_path.rglob("*.html"))
    assert len(pages) > 60
    with served(tmp_path) as home:
        looks = Looks.at(home, pages, DESKTOP, PHONE)
    seen = looks.seen
    desktop = {page: at[0] for page, at in seen.items()}
    problems = {
        f"scrolls sideways at {DESKTOP} px": _with(desktop, "page"),
        f"scrolls sideways at {PHONE} px": _with({p: at[1] for p, at in seen.items()}, "page"),
        f"code is cut at {DESKTOP} px": _with(desktop, "code"),
        "a picture is missing": _with(desktop, "pictures"),
        "raw source instead of a picture": _with(desktop, "raw"),
        "a link leads nowhere": dead_links(desktop, tmp_path, home),
        "a request left the machine": looks.left,
        "something was not found": looks.failed,
    }
    assert {what: where for what, where in problems.items() if where} == {}


def _with(looks: dict[str, dict[str, Any]], what: str) -> dict[str, Any]:
    """The pages with something to say: a list that is not empty, or a width that is too much."""
    said = {page: look[what] for page, look in looks.items()}
    return {page: it for page, it in said.items() if (it if isinstance(it, list) else it > 0)}


def dead_links(looks: dict[str, dict[str, Any]], site: Path, home: str) -> list[str]:
    ids = {page: set(look["ids"]) for page, look in looks.items()}
    dead = []
    for page, look in looks.items():
        for link in look["links"]:
            if not link.startswith(home):
                continue
            address, anchor = urldefrag(link)
            path = unquote(address.removeprefix(home))
            target = f"{path}index.html" if path.endswith("/") or not path else path
            if not (site / target).exists():
                dead.append(f"{page}: {link}")
            elif anchor and target in ids and unquote(anchor) not in ids[target]:
                dead.append(f"{page}: {link} (no such heading)")
    return dead


# ------------------------------------------------------------------ the checks themselves can fail


BAD = """<!doctype html><title>bad</title><body style="margin:0"><div style="width:2000px">wide</div>
<pre style="width:50px;overflow:hidden"><code style="display:block;overflow:auto">{line}</code></pre>
<img src="gone.svg"><div class="mermaid">graph TD</div><a href="nowhere/">dead</a>
<script src="http://elsewhere.invalid/x.js"></script></body>"""


def test_a_bad_page_would_be_seen(tmp_path: Path):
    (tmp_path / "index.html").write_text(BAD.format(line="x" * 300))
    with served(tmp_path) as home:
        looks = Looks.at(home, ["index.html"], PHONE)
        (at,) = looks.seen["index.html"]
        assert at["page"] > 0
        assert at["code"] == ["x" * 60]
        assert at["pictures"] == [f"{home}gone.svg"]
        assert at["raw"] == ["graph TD"]
        assert looks.left == ["http://elsewhere.invalid/x.js"]
        assert looks.failed == [f"404 {home}gone.svg"]
        assert _with({"index.html": at}, "page") == {"index.html": at["page"]}
        assert dead_links({"index.html": at}, tmp_path, home) == [f"index.html: {home}nowhere/"]
