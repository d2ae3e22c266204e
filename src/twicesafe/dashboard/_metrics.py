"""What services count, read from their ``/metrics``: for a dashboard that receives nothing itself.

    twicesafe dashboard --store URL --metrics http://shop:9100/metrics --metrics http://shop2:9100/metrics

The pages are those of `PrometheusObserver` and of the proxy. The numbers of all of them are added
up. Rates are counted from the first look at each page. A counter that is smaller than before has
started again from zero, as in a restarted process. A page that does not answer leaves its last
numbers in place, and the overview says so.
"""

from __future__ import annotations

import math
import re
import threading
import urllib.request
from collections.abc import Callable, Sequence
from http.client import HTTPException
from typing import Final
from urllib.parse import urlsplit

from .._edges.readable import visible
from .._values.clocks import WorkerClock, since_boot
from ..errors import ConfigurationError
from ..observers._history import SEEN, Ages, MetricHistory, Numbers, ages_of
from ..observers._tally import Cell
from ..stores._urls import mask

__all__ = ["ServiceMetrics", "check_metrics_url", "read_metrics"]

EVERY: Final = 10.0
"""Seconds between two looks."""
TIMEOUT: Final = 5.0
LARGEST: Final = 16_000_000
"""Bytes of one page that are read."""

_LINE: Final = re.compile(r"(twicesafe_\w+)(?:\{(.*)\})? (\S+)", re.ASCII)
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class ServiceMetrics:
    """The sum of several pages, and its history."""

    def __init__(
        self,
        urls: Sequence[str],
        fetch: Callable[[str], str] | None = None,
        clock: WorkerClock = since_boot,
    ) -> None:
        for url in urls:
            check_metrics_url(url)
        self._urls, self._fetch, self._clock = tuple(urls), fetch or _fetched, clock
        self._pages: dict[str, Numbers] = {}
        self._grown: Numbers = {}
        """What came since the first look, over all pages."""
        self._problems: dict[str, str] = {}
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.look()
        self.history = MetricHistory(
            lambda: {name: list(cell) for name, cell in self._grown.items()}, clock
        )

    @property
    def origin(self) -> str:
        """Where the numbers come from, in words."""
        count = len(self._urls)
        return "of your service" if count == 1 else f"of {count} services"

    @property
    def problem(self) -> str:
        """Which pages do not answer, and why; empty: all do."""
        said = [f"{mask(url)} does not answer ({why})" for url, why in self._problems.items()]
        return "; ".join(said)

    def look(self) -> None:
        """Read every page once."""
        for url in self._urls:
            try:
                page = read_metrics(self._fetch(url))
            except (OSError, ValueError, HTTPException) as error:
                why = str(getattr(error, "reason", error)) or type(error).__name__
                self._problems[url] = visible(why)[:200]
            else:
                self._problems.pop(url, None)
                self._grow(self._pages.get(url), page)
                self._pages[url] = page

    def start(self) -> None:
        """Look every few seconds, until `stop`."""

        def keep_looking() -> None:
            while not self._stopped.wait(EVERY):
                self.look()
                self.history.look()

        self._thread = threading.Thread(
            target=keep_looking, name="twicesafe dashboard metrics", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def ages(self) -> Ages:
        """The age of duplicates since the services started."""
        total: Numbers = {}
        for page in list(self._pages.values()):
            for name, cell in page.items():
                total[name] = _added(total.get(name), cell)
        return ages_of(total)

    def _grow(self, before: Numbers | None, page: Numbers) -> None:
        if before is None:
            return
        grown = dict(self._grown)
        for name, cell in page.items():
            old = before.get(name)
            if old is None or any(a < b for a, b in zip(cell, old, strict=True)):
                more = cell
            else:
                more = [a - b for a, b in zip(cell, old, strict=True)]
            grown[name] = _added(grown.get(name), more)
        self._grown = grown  # at once: another thread reads it


def _added(one: Cell | None, other: Cell) -> Cell:
    return list(other) if one is None else [a + b for a, b in zip(one, other, strict=True)]


def read_metrics(page: str) -> Numbers:
    """Our numbers on a page of Prometheus text; labels that others add are summed over."""
    counters = {row.full_name: row for row in SEEN if not row.buckets}
    histograms = {f"{row.full_name}_bucket": row for row in SEEN if row.buckets}
    sums = {f"{row.full_name}_sum": row for row in SEEN if row.buckets}
    found: Numbers = {}
    cumulative: dict[tuple[str, ...], list[float]] = {}
    for line in page.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        name, labels = match[1], dict(_LABEL.findall(match[2] or ""))
        row = counters.get(name) or histograms.get(name) or sums.get(name)
        if row is None:
            continue
        key = (row.name, *(labels.get(label, "") for label in row.labels))
        number = float(match[3])
        if not math.isfinite(number):
            raise ValueError(f"{name} is {match[3]}, which is no count")
        if not row.buckets:
            cell = found.setdefault(key, [0.0])
            cell[0] += number
            continue
        cells = cumulative.setdefault(key, [0.0] * (len(row.buckets) + 2))
        if name in sums:
            cells[-1] += number
        elif (place := _place(row.buckets, labels.get("le", ""))) is not None:
            cells[place] += number
    for key, cells in cumulative.items():
        upto = [0.0, *cells[:-2]]
        found[key] = [max(0.0, a - b) for a, b in zip(cells[:-1], upto, strict=True)] + cells[-1:]
    return found


def _place(buckets: tuple[float, ...], bound: str) -> int | None:
    if bound == "+Inf":
        return len(buckets)
    try:
        return buckets.index(float(bound))
    except ValueError:
        return None  # buckets of another version


def check_metrics_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError(
            f"metrics={mask(url)!r} is not valid: use a URL like http://127.0.0.1:9100/metrics"
        )


def _fetched(url: str) -> str:
    request = urllib.request.Request(url, headers={"accept": "text/plain"})  # noqa: S310 - checked
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:  # noqa: S310 - checked above
        body: bytes = answer.read(LARGEST)
    return body.decode("utf-8", "replace")
