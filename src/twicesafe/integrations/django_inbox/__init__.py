"""Django: the inbox and the outbox in your own database, with migrations for their tables.

    INSTALLED_APPS = [..., "twicesafe.integrations.django_inbox"]       # then: manage.py migrate

    from twicesafe.integrations.django_inbox import open_inbox, open_outbox
    inbox = open_inbox(consumer="billing")                              # of the database "default"
    outbox = open_outbox()

    with transaction.atomic():
        if inbox.accept(connection, message["id"]):
            Payment.objects.create(...)
            outbox.add(connection, topic="payments", body={"id": message["id"]})

The statements go through Django's own connection, in your thread and your `atomic` block. What is
kept although your block is rolled back, the count of failed attempts, is written on a connection of
its own, opened for that moment. Both may be made at the top of a module: nothing is opened before
the first use.

    apps, models   the app; its model shows records, and is not managed by Django
    migrations     make the same tables as ``twicesafe migrate``, or keep those that are there
    making         how they do that
    opening        from DATABASES to a store URL
    database       the store behind that URL, opened when it is needed
"""

from __future__ import annotations

from typing import Any

__all__ = ["open_inbox", "open_outbox"]


def __getattr__(name: str) -> Any:
    if name in __all__:  # Django loads this package before its settings are there
        from . import _opening as opening

        return getattr(opening, name)
    raise AttributeError(name)
