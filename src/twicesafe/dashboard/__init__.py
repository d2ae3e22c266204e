"""The dashboard: what a receiver and its store do, in a browser, and the actions of operators.

    from twicesafe.dashboard import Access, dashboard

    app.mount("/ops", dashboard(receiver, resolve_access=who, hosts=("ops.example.com",)))

    async def who(request):              # "all", "read-only" or "forbidden", or an Access with a name
        user = await your_login(request)
        return Access(level="all", user=user.name) if user.is_operator else "forbidden"

``twicesafe dashboard --store URL`` serves it alone. It works without JavaScript and fetches nothing from
elsewhere. It needs Starlette and Jinja2: ``pip install "twicesafe[dashboard]"``.

    _app, _visits                              routes, and what every request goes through
    _overview, _pages, _timeline, _failures    what a page shows: pure
    _lists, _running                           …of the outbox, dead letters, audit; of relays and consumers
    _filters, _forms                           what a URL and a form say
    _charts, _overview_charts, _templates      how it looks
    _backend, _metrics                         what the pages read: the receiver, and services' /metrics
    _actions, _bulk_actions, _letters          what operators do: to one key, to many, to dead letters
    _access, _security, _login                 access levels; Host, headers and form tokens; the token login
    _serving, _settings                        ``twicesafe dashboard``: uvicorn, and its settings
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._access import Access, Level, ResolveAccess

if TYPE_CHECKING:
    from ._app import dashboard

__all__ = ["Access", "Level", "ResolveAccess", "dashboard"]


if not TYPE_CHECKING:  # a type checker must not believe that every name exists

    def __getattr__(name: str) -> Any:
        """Loaded on first use: it needs Starlette."""
        if name == "dashboard":
            from .._values.drivers import require

            require("starlette", "jinja2")
            from ._app import dashboard

            return dashboard
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
