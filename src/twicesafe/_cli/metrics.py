"""`--metrics HOST:PORT` of a command that runs long: /metrics for Prometheus, /health and /ready for probes.

A command with a receiver also counts the records for their gauges, as often as /health does. The server is the
standard library's, with the page of prometheus-client. It ends with the command.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from socketserver import ThreadingMixIn
from typing import Annotated, Any, Final, TypeAlias
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import typer

from .. import health
from .._edges.listener import ListenAddress, shown
from .._values.drivers import require
from ..events import Observer
from ..receiver import AsyncReceiver, Receiver
from ..receiver._health import COUNTS, Cached
from .output import Screen

__all__ = ["MetricsOption", "MetricsPage", "metrics_page"]

MetricsOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        metavar="HOST:PORT",
        help="Serve metrics for Prometheus at this address: /metrics. Keep it private.",
        show_default="off",
    ),
]

_log = logging.getLogger("twicesafe")

_HEALTH: Final = ("/health", "/ready")


@contextmanager
def metrics_page(screen: Screen, address: str) -> Iterator[MetricsPage]:
    """The page at this address until the block ends; without an address it observes and serves nothing."""
    if not address:
        yield MetricsPage(None)
        return
    require("prometheus_client")
    from ..observers import PrometheusObserver

    with ListenAddress.of(address, "metrics").bind() as listening:
        page = MetricsPage(PrometheusObserver._joining())
        server = _Server(listening, page)
        thread = threading.Thread(
            target=server.serve_forever, name="twicesafe-metrics", daemon=True
        )
        thread.start()
        screen.place(shown(listening), "/metrics")
        try:
            yield page
        finally:
            server.shutdown()
            thread.join()


class MetricsPage:
    """What a command reports, as a WSGI application."""

    def __init__(self, observer: Any) -> None:
        self.observers: list[Observer] = [] if observer is None else [observer]
        self._health: Any = None
        if observer is not None:
            self._serve_registry_of(observer)

    def _serve_registry_of(self, observer: Any) -> None:
        from prometheus_client import make_wsgi_app

        self._metrics = make_wsgi_app(observer._registry)

    def __call__(self, environ: Any, start: Any) -> Any:
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            return self._metrics(environ, start)
        if path in _HEALTH and self._health is not None:
            return self._health(environ, start)
        start("404 Not Found", [("Content-Type", "text/plain")])
        return [b"not found: use /metrics\n"]

    def observe(self, receiver: Any) -> None:
        """Count what this receiver reports. If its own observers count for Prometheus, their registry is served."""
        for observer in self.observers:
            own = [one for one in receiver._observed if isinstance(one, type(observer))]
            if own:
                self._serve_registry_of(own[0])
            else:
                receiver._observe(observer)

    @contextmanager
    def watching(self, receiver: Receiver) -> Iterator[None]:
        """Count its records for the gauges, and answer for its health, until the block ends."""
        if not self.observers:
            yield
            return
        cached, over = Cached(receiver, health.Thresholds()), threading.Event()

        def count() -> None:
            while True:
                with _logged():
                    cached.health()
                if over.wait(COUNTS):
                    return

        self._health = health._wsgi(partial(health._asked, receiver, cached))
        thread = threading.Thread(target=count, name="twicesafe-gauges", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._health = None
            over.set()
            thread.join()

    @asynccontextmanager
    async def watching_async(self, receiver: AsyncReceiver) -> AsyncIterator[None]:
        """Async version of `watching`."""
        if not self.observers:
            yield
            return
        cached, loop = Cached(receiver, health.Thresholds()), asyncio.get_running_loop()

        async def count() -> None:
            while True:
                with _logged():
                    await cached.health_async()
                await asyncio.sleep(COUNTS)

        def ask(path: str) -> tuple[int, dict[str, Any]]:
            return _answer_of(health._asked_async(receiver, cached, path), loop)

        self._health = health._wsgi(ask)
        counting = loop.create_task(count(), name="twicesafe-gauges")
        try:
            yield
        finally:
            self._health = None
            counting.cancel()
            await asyncio.wait({counting})


def _answer_of(
    asked: Coroutine[Any, Any, tuple[int, dict[str, Any]]], loop: asyncio.AbstractEventLoop
) -> tuple[int, dict[str, Any]]:
    """From the thread of a request: the answer of the loop, which may have ended."""
    try:
        return asyncio.run_coroutine_threadsafe(asked, loop).result()
    except (CancelledError, RuntimeError):
        asked.close()
        return 503, {"ready": False, "reason": "the command ends"}


@contextmanager
def _logged() -> Iterator[None]:
    """A count that fails is tried again later."""
    try:
        yield
    except Exception:
        _log.exception("counting the records for the metrics failed")


class _Server(ThreadingMixIn, WSGIServer):
    """Serves an application at a socket that listens. A request still running does not keep the command."""

    daemon_threads = True

    def __init__(self, listening: socket.socket, application: Callable[..., Any]) -> None:
        host, port = listening.getsockname()[:2]
        super().__init__((host, port), _Request, bind_and_activate=False)
        self.socket.close()
        listening.setblocking(True)
        self.socket = listening
        self.server_name, self.server_port = host, port
        self.setup_environ()
        self.set_app(application)

    def handle_error(self, *_: Any) -> None:
        _log.debug("a request for the metrics failed", exc_info=True)


class _Request(WSGIRequestHandler):
    timeout = 30
    """Seconds that a client may be silent."""

    def log_message(self, *_: Any) -> None: ...
