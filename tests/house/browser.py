"""A built site, served on this machine and looked at with a real browser."""

from __future__ import annotations

import asyncio
import functools
import http.server
import re
import shutil
import threading
from collections.abc import Iterable, Iterator, Sequence
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
"""Empty here: an index of all pages, made again for each of them."""

TABS: Final = 4

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
    """Left out here, not by a route of playwright: that would stop every request, and switch the cache off."""

    def log_message(self, *words: Any) -> None:
        pass

    def do_GET(self) -> None:
        if SEARCH.search(self.path):
            self.send_response(204)
            self.end_headers()
        else:
            super().do_GET()

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "max-age=600")
        super().end_headers()


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


class Requests:
    """Remembers every request that left this machine, and every one that failed."""

    def __init__(self) -> None:
        self.left: list[str] = []
        self.failed: list[str] = []

    def listen(self, to: Any) -> None:
        to.on("request", self._asked)
        to.on("response", self._answered)

    def _asked(self, request: Any) -> None:
        url = urlsplit(request.url)
        if url.scheme in ("http", "https", "ws", "wss") and url.hostname != "127.0.0.1":
            self.left.append(request.url)

    def _answered(self, response: Any) -> None:
        if response.status >= 400 and not response.url.endswith("/favicon.ico"):
            self.failed.append(f"{response.status} {response.url}")


class Browser(Requests):
    """Opens one page after another."""

    def __init__(self, page: Any, home: str) -> None:
        super().__init__()
        self.page, self._home = page, home
        self.listen(page)

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
    playwright = _needed("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=_program(), args=SWITCHES)
        try:
            yield Browser(browser.new_page(**settings), home)
        finally:
            browser.close()


class Looks(Requests):
    """What there is to say about every page, at each width. Several tabs share the work."""

    def __init__(self, home: str, widths: Sequence[int]) -> None:
        super().__init__()
        self._home, self._widths = home, widths
        self.seen: dict[str, list[dict[str, Any]]] = {}

    @classmethod
    def at(cls, home: str, paths: Iterable[str], *widths: int) -> Looks:
        looks = cls(home, widths)
        asyncio.run(looks._look_at_all(list(paths)))
        return looks

    async def _look_at_all(self, paths: list[str]) -> None:
        playwright = _needed("playwright.async_api")
        async with playwright.async_playwright() as driver:
            browser = await driver.chromium.launch(executable_path=_program(), args=SWITCHES)
            context = await browser.new_context(viewport={"width": self._widths[0], "height": 900})
            self.listen(context)
            paths.reverse()
            await asyncio.gather(*(self._tab(context, paths) for _ in range(TABS)))
            await browser.close()

    async def _tab(self, context: Any, paths: list[str]) -> None:
        page = await context.new_page()
        while paths:
            path = paths.pop()
            # Loaded at the first width: a page that grows from a phone's width keeps some of its layout.
            await page.set_viewport_size({"width": self._widths[0], "height": 900})
            await page.goto(self._home + path)
            at = self.seen[path] = [await page.evaluate(LOOK)]
            for width in self._widths[1:]:
                await page.set_viewport_size({"width": width, "height": 900})
                at.append(await page.evaluate(LOOK))


def _program() -> str:
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(PROGRAMS)} is installed (./dev servers)")
    return program


def _needed(module: str) -> Any:
    return pytest.importorskip(module, reason="playwright is not installed")
