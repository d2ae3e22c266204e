"""From an entry in DATABASES to an inbox or an outbox in that database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode

from django.db import connections

from ... import Inbox, Outbox
from ..._values.hidden_keys import HiddenKeys
from ...errors import ConfigurationError
from ._database import DjangoDatabase

__all__ = ["open_inbox", "open_outbox", "url_of"]


def open_inbox(alias: str = "default", *, hidden_keys: str = "", **settings: Any) -> Inbox:
    """An `Inbox` in this database; its tables come from ``manage.py migrate``.

    It connects at the first use, so you can call this at the top of a module. ``hidden_keys`` is
    that of a store's URL (``env:NAME`` or ``file:/path``): the database gets keyed hashes in place
    of keys and scopes.
    """
    hidden = HiddenKeys.load(hidden_keys) if hidden_keys else None
    return Inbox(_database(alias, hidden), **settings)


def open_outbox(alias: str = "default", **settings: Any) -> Outbox:
    """An `Outbox` in this database; its tables come from ``manage.py migrate``. Otherwise like `open_inbox`."""
    return Outbox(_database(alias), **settings)


def _database(alias: str, hidden_keys: HiddenKeys | None = None) -> Any:
    return DjangoDatabase(alias, lambda: url_of(alias), hidden_keys)


_AS_IT_IS: Final = {"migrate": "false"}


def url_of(alias: str) -> str:
    """The store URL of a Django database, whose tables Django migrates. In a test it is that of the test
    database."""
    connection = connections[alias]
    described, vendor = connection.settings_dict, connection.vendor
    name = str(described["NAME"])
    if vendor == "sqlite":
        if name == ":memory:" or "mode=memory" in name:
            raise ConfigurationError(
                f"the database {alias!r} is in memory, where no other connection can see it: use a "
                'file; for tests say DATABASES["default"]["TEST"] = {"NAME": BASE_DIR / "test.sqlite3"}'
            )
        return f"sqlite:///{quote(name)}?{urlencode(_AS_IT_IS)}"
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
    url = f"{vendor}://{who}{place}/{quote(name, safe='')}"
    options = _libpq(described["OPTIONS"]) if vendor == "postgresql" else {}
    return f"{url}?{urlencode({**_AS_IT_IS, **options}, quote_via=quote)}"


_NOT_LIBPQ: Final = (
    *("assume_role", "isolation_level", "pool", "server_side_binding"),  # of Django
    *("autocommit", "prepare_threshold"),  # of psycopg
)


def _libpq(options: Mapping[str, Any]) -> dict[str, Any]:
    """What OPTIONS of a PostgreSQL database say to libpq: a `search_path`, certificates, a password file."""
    return {
        name: value
        for name, value in options.items()
        if isinstance(value, str | int) and value != "" and name not in _NOT_LIBPQ
    }
