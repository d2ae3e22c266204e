"""A built site, served on this machine and looked at with a real browser."""

from __future__ import annotations

import functools
import http.server
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest

PROGRAMS: Final = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
# Quiet: no window, no sandbox (root has none), nothing that the browser fetches for itself.
SWITCHES: Final = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

SEARCH: Final = re.compile(r"/search_index\.json$|/workers/search\.")
"""Not loaded: an index of all pages, made again for each of them."""

LOOK: Final = """() => {
    const text = (node) => node.textContent.trim().slice(0, 60);
    const wide = (node) => node.scrollWidth > node.clientWidth + 1;
    return {
        page: document.documentElement.scrollWidth - window.innerWidth,
        code: [...document.querySelectorAll('pre > code')].filter(wide).map(text),
        pictures: [...document.images].filter((i) => !i.naturalWidth).map((i) => i.src),
        raw: [...document.querySelectorAll('.mermaid, code.language-mermaid')].map(text),
        links: [...document.querySelectorAll('a[href]')].map((a) => a.href),
        ids: [...document.querySelectorAll('[id]')].map((node) => node.id),
    };
}"""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *words: Any) -> None:
        pass


@contextmanager
def served(site: Path) -> Iterator[str]:
    handler = functools.partial(_Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


class Browser:
    """Opens one page after another and remembers every request that left this machine."""

    def __init__(self, page: Any, home: str) -> None:
        self.page, self._home = page, home
        self.left: list[str] = []
        self.failed: list[str] = []
        page.route(SEARCH, lambda route: route.abort())
        page.on("request", self._asked)
        page.on("response", self._answered)

    def _asked(self, request: Any) -> None:
        url = urlsplit(request.url)
        if url.scheme in ("http", "https", "ws", "wss") and url.hostname != "127.0.0.1":
            self.left.append(request.url)

    def _answered(self, response: Any) -> None:
        if response.status >= 400 and not response.url.endswith("/favicon.ico"):
            self.failed.append(f"{response.status} {response.url}")

    def look(self, path: str, *widths: int) -> list[dict[str, Any]]:
        """What there is to say about a page, at each width."""
        self.page.set_viewport_size({"width": widths[0], "height": 900})
        self.page.goto(self._home + path)
        seen = []
        for width in widths:
            self.page.set_viewport_size({"width": width, "height": 900})
            seen.append(self.page.evaluate(LOOK))
        return seen


@contextmanager
def opened(home: str, **settings: Any) -> Iterator[Browser]:
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(PROGRAMS)} is installed (./dev servers)")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=SWITCHES)
        try:
            yield Browser(browser.new_page(**settings), home)
        finally:
            browser.close()
