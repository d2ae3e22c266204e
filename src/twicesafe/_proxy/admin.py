"""Health and metrics, for operators only: on a separate listener, off by default.

GET /live      200 while the supervisor runs
GET /ready     200 if every worker answers and reaches the store, else 503
GET /metrics   Prometheus text, summed over all workers
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

from .._core.http.message import StoredResponse
from ..asgi._messages import Message, Receive, Send, answer
from .metrics import WorkerCount, page
from .worker import WorkerReport

__all__ = ["Admin"]

_TEXT = b"text/plain; version=0.0.4; charset=utf-8"


class Admin:
    def __init__(
        self,
        reports: Callable[[], Awaitable[list[WorkerReport]]],
        past: Callable[[], list[WorkerCount]],
        workers: Callable[[], int],
    ) -> None:
        self._reports, self._past, self._workers = reports, past, workers

    async def __call__(self, scope: Message, _: Receive, send: Send) -> None:
        status, kind, body = await self._answer(scope["method"], scope["path"])
        fields = (
            (b"content-type", kind),
            (b"content-length", str(len(body)).encode()),
            (b"cache-control", b"no-store"),
        )
        await answer(send, StoredResponse(status, fields, body))

    async def _answer(self, method: str, path: str) -> tuple[int, bytes, bytes]:
        if method not in ("GET", "HEAD"):
            return 405, b"text/plain", b"only GET\n"
        match path:
            case "/live":
                return 200, b"text/plain", b"alive\n"
            case "/ready":
                return await self._ready()
            case "/metrics":
                reports = await self._reports()
                counts = [count for report in reports for count in report.counts]
                return 200, _TEXT, page([*self._past(), *counts], len(reports)).encode()
        return 404, b"text/plain", b"not found: use /live, /ready or /metrics\n"

    async def _ready(self) -> tuple[int, bytes, bytes]:
        reports = await self._reports()
        wanted, store = self._workers(), all(report.store for report in reports)
        fine = len(reports) >= wanted and store
        said = {"ready": fine, "workers": len(reports), "wanted": wanted, "store": store}
        return 200 if fine else 503, b"application/json", json.dumps(said).encode() + b"\n"
