"""System checks: what ``manage.py check`` says about the settings and the store.

twicesafe.E001   the setting TWICESAFE cannot be used
twicesafe.W001   the store is in memory, and DEBUG is off
twicesafe.W002   the middleware stands before the authentication
twicesafe.W003   the store does not answer       (only ``manage.py check --database default`` and ``migrate``)
twicesafe.W004   its tables are missing or old   (the same)

W004 is a warning, because an error would stop ``manage.py migrate``, which may be the command that
creates the tables.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, urlencode

from django.conf import settings
from django.core.checks import CheckMessage, Error
from django.core.checks import Warning as Warned
from django.core.exceptions import ImproperlyConfigured

from ... import Receiver
from ...errors import ConfigurationError, SchemaVersionError, TwicesafeError
from ...stores._urls import is_missing
from ._settings import read, setting

__all__ = ["check_settings", "check_store"]

OURS = "twicesafe.integrations.django.IdempotencyMiddleware"
AUTHENTICATION = "django.contrib.auth.middleware.AuthenticationMiddleware"


def check_settings(app_configs: Any = None, **more: Any) -> list[CheckMessage]:
    middleware = list(settings.MIDDLEWARE or ())
    found: list[CheckMessage] = []
    try:
        if not setting() and OURS not in middleware:
            return []
        _, store, _ = read()
        is_missing(store)  # refuses a URL that no store has
    except (ImproperlyConfigured, ConfigurationError, TypeError) as error:
        return [Error(str(error), id="twicesafe.E001")]
    if OURS not in middleware:
        return []
    if store.startswith("memory:") and not settings.DEBUG:
        found.append(
            Warned(
                "twicesafe keeps its records in the memory of each process",
                hint="another worker process runs a repeat again: use a database, Redis or a SQLite file",
                id="twicesafe.W001",
            )
        )
    if AUTHENTICATION in middleware and middleware.index(OURS) < middleware.index(AUTHENTICATION):
        found.append(
            Warned(
                "IdempotencyMiddleware stands before AuthenticationMiddleware",
                hint="it does not see the user, who is part of a key's scope: move it behind",
                id="twicesafe.W002",
            )
        )
    return found


def check_store(app_configs: Any = None, databases: Any = None, **more: Any) -> list[CheckMessage]:
    """Opens the store as it is; it neither creates nor migrates it. ``databases``: None, if none was named."""
    try:
        url = setting().get("store", "")
    except ImproperlyConfigured:
        return []  # E001
    if not databases or not url.startswith(("sqlite", "postgresql", "mysql", "mariadb")):
        return []
    try:
        if is_missing(url):
            return []  # a file that the first request creates
        place, _, given = url.partition("?")
        options = parse_qsl(given, keep_blank_values=True)
        kept = [(name, text) for name, text in options if name != "migrate"]
        Receiver.open(f"{place}?{urlencode([*kept, ('migrate', 'false')])}").close()
    except SchemaVersionError as error:
        older = "migrate" in str(
            error
        )  # else they are of a newer version, which is to be installed
        hint = "run `manage.py twicesafe migrate`" if older else None
        return [Warned(f"twicesafe: {error}", hint=hint, id="twicesafe.W004")]
    except TwicesafeError as error:
        return [Warned(f"twicesafe: {error}", id="twicesafe.W003")]
    return []
