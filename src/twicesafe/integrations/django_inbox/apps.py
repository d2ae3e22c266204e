"""The app's configuration for Django."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.db.backends.signals import connection_created
from django.db.models.signals import post_migrate

__all__ = ["InboxConfig"]


class InboxConfig(AppConfig):  # type: ignore[misc]
    name = "twicesafe.integrations.django_inbox"
    label = "twicesafe"
    verbose_name = "twicesafe"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        connection_created.connect(_connected, dispatch_uid="twicesafe")
        post_migrate.connect(_migrated, sender=self, dispatch_uid="twicesafe")


def _connected(sender: Any, connection: Any, **more: Any) -> None:
    from ._database import make_ready

    make_ready(connection.alias)


def _migrated(sender: Any, using: str, **more: Any) -> None:
    from ._database import make_ready

    make_ready(using)
