"""``twicesafe dashboard``: the dashboard alone, on uvicorn.

Without a token it listens on the loopback only, and answers only requests from this machine. A request that
came through a proxy is refused, because anyone may have sent it to the proxy.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Generator
from typing import Any, Final

import uvicorn
from starlette.requests import Request

from .._core.health import Thresholds
from .._edges.listener import shown
from ..errors import ConfigurationError
from ..receiver import Receiver
from ._access import FORBIDDEN, Access
from ._app import Dashboard
from ._backend import Backend
from ._login import SESSION_COOKIE, Login
from ._metrics import ServiceMetrics
from ._security import SecurityMiddleware
from ._settings import DashboardSettings, is_loopback

__all__ = ["application", "serve"]

PASSED_ON: Final = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
"""Fields that proxies add."""


def application(
    receiver: Receiver,
    settings: DashboardSettings,
    login: Login | None,
    metrics: ServiceMetrics | None = None,
) -> SecurityMiddleware:
    backend = Backend(
        receiver, Thresholds(), settings.dead_letters or None, metrics, settings.consumers
    )
    resolve = _by_session(login) if login is not None else _by_address(settings)
    return SecurityMiddleware(Dashboard(backend, resolve, login).app(), settings.names)


def serve(
    receiver: Receiver, settings: DashboardSettings, ready: Callable[[str, bool], object]
) -> None:
    """Serve until a signal ends it. ``ready`` gets the address, and whether there is a login."""
    login = settings.login()
    with settings.listener.bind() as listening:
        if login is None and not is_loopback(listening.getsockname()[0]):
            raise ConfigurationError(
                f"listen={settings.listen!r} can be reached from other machines, and there is no login: "
                "set TWICESAFE_DASHBOARD_TOKEN or --token-file, or listen on 127.0.0.1"
            )
        metrics = ServiceMetrics(settings.metrics) if settings.metrics else None
        config = uvicorn.Config(
            application(receiver, settings, login, metrics),
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,  # a search for a key is in the URL
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=5,
        )
        ready(shown(listening), login is not None)
        with contextlib.ExitStack() as ending:
            if metrics is not None:
                metrics.start()
                ending.callback(metrics.stop)
            asyncio.run(_Server(config).serve([listening]))


def _by_session(login: Login) -> Callable[[Request], Access]:
    return lambda request: login.access(request.cookies.get(SESSION_COOKIE))


def _by_address(settings: DashboardSettings) -> Callable[[Request], Access]:
    level: Any = "read-only" if settings.read_only else "all"
    given = Access(level=level, show_keys=settings.show_keys)

    def resolve(request: Request) -> Access:
        passed_on = any(name in request.headers for name in PASSED_ON)
        here = request.client is not None and is_loopback(request.client.host)
        return given if here and not passed_on else FORBIDDEN

    return resolve


class _Server(uvicorn.Server):
    """Ends quietly on SIGTERM and Ctrl-C."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        if os.name != "posix":
            with super().capture_signals():
                yield
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop)
        yield

    def _stop(self) -> None:
        self.should_exit = True
