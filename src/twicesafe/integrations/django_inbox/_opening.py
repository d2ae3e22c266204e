"""From an entry in DATABASES to an inbox or an outbox in that database."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from django.db import connections

from ... import Inbox, Outbox
from ..._values.hidden_keys import HiddenKeys
from ...errors import ConfigurationError
from ._database import DjangoDatabase

__all__ = ["open_inbox", "open_outbox", "url_of"]


def open_inbox(alias: str = "default", *, hidden_keys: str = "", **settings: Any) -> Inbox:
    """An `Inbox` in this database; its tables come from ``manage.py migrate``.

    It connects at the first use, so you can call this at the top of a module. ``hidden_keys`` is that of a store's
    URL (``env:NAME`` or ``file:/path``): the database gets keyed hashes in place of keys and scopes.
    """
    hidden = HiddenKeys.load(hidden_keys) if hidden_keys else None
    return Inbox(_database(alias, hidden), **settings)


def open_outbox(alias: str = "default", **settings: Any) -> Outbox:
    """An `Outbox` in this database; its tables come from ``manage.py migrate``. Otherwise like `open_inbox`."""
    return Outbox(_database(alias), **settings)


def _database(alias: str, hidden_keys: HiddenKeys | None = None) -> Any:
    return DjangoDatabase(alias, lambda: f"{url_of(alias)}?migrate=false", hidden_keys)


def url_of(alias: str) -> str:
    """The store URL of a Django database. In a test it is that of the test database."""
    connection = connections[alias]
    described, vendor = connection.settings_dict, connection.vendor
    name = str(described["NAME"])
    if vendor == "sqlite":
        if name == ":memory:" or "mode=memory" in name:
            raise ConfigurationError(
                f"the database {alias!r} is in memory, where no other connection can see it: use a "
                'file; for tests say DATABASES["default"]["TEST"] = {"NAME": BASE_DIR / "test.sqlite3"}'
            )
        return f"sqlite:///{name}"
    if vendor not in ("postgresql", "mysql"):
        raise ConfigurationError(f"the database {alias!r} is {vendor}, which has no inbox")
    user, password = (quote(str(described[part] or ""), safe="") for part in ("USER", "PASSWORD"))
    who = f"{user}:{password}@" if password else f"{user}@" if user else ""
    host, port = described["HOST"] or "", described["PORT"] or ""
    if host.startswith("/"):
        raise ConfigurationError(
            "HOST is a socket: open the inbox by its URL, Inbox.open('postgresql://…'), instead"
        )
    place = f"{host}:{port}" if port else host
    return f"{vendor}://{who}{place}/{quote(name, safe='')}"
