"""Django: the inbox in your own database, with a migration for its tables.

    INSTALLED_APPS = [..., "twicesafe.integrations.django_inbox"]       # then: manage.py migrate

    from twicesafe.integrations.django_inbox import open_inbox
    inbox = open_inbox(consumer="billing")                              # of the database "default"

    with transaction.atomic():
        if inbox.accept(connection, message["id"]):
            Payment.objects.create(...)

The statements go through Django's own connection, in your thread and your `atomic` block. `inbox`
has a connection of its own besides, to the same database, for what is kept although your block is
rolled back: the count of failed attempts.

    apps, models   the app; its model shows records, and is not managed by Django
    migrations     make the same tables as ``twicesafe migrate``
    opening        from DATABASES to a store URL
"""

from __future__ import annotations

from typing import Any

__all__ = ["open_inbox"]


def __getattr__(name: str) -> Any:
    if name == "open_inbox":  # Django loads this package before its settings are there
        from .opening import open_inbox

        return open_inbox
    raise AttributeError(name)
