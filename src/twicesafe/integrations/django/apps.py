"""The app's configuration for Django: put it into INSTALLED_APPS for the command and the system checks.

    INSTALLED_APPS = [..., "twicesafe.integrations.django"]

The middleware works without it.
"""

from __future__ import annotations

from django.apps import AppConfig
from django.core import checks

__all__ = ["HttpConfig"]


class HttpConfig(AppConfig):  # type: ignore[misc]
    name = "twicesafe.integrations.django"
    label = "twicesafe_http"
    verbose_name = "twicesafe (HTTP)"

    def ready(self) -> None:
        from . import _checks

        checks.register(_checks.check_settings)
        checks.register(_checks.check_store, checks.Tags.database)
