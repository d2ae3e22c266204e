"""The app, as Django wants to be told."""

from __future__ import annotations

from django.apps import AppConfig

__all__ = ["InboxConfig"]


class InboxConfig(AppConfig):  # type: ignore[misc]
    name = "twicesafe.integrations.django_inbox"
    label = "twicesafe"
    verbose_name = "twicesafe"
    default_auto_field = "django.db.models.BigAutoField"
