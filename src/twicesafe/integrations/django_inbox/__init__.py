"""Django: the inbox and the outbox in your own database, with migrations for their tables.

    INSTALLED_APPS = [..., "twicesafe.integrations.django_inbox"]       # then: manage.py migrate

    from twicesafe.integrations.django_inbox import open_inbox, open_outbox
    inbox = open_inbox(consumer="billing")                              # of the database "default"
    outbox = open_outbox()

    with transaction.atomic():
        if inbox.accept(connection, message["id"]):
            Payment.objects.create(...)
            outbox.add(connection, topic="payments", body={"id": message["id"]})

The statements go through Django's own connection, in your thread and your `atomic` block. The count
of failed attempts must survive a rollback of your block, so it is written on a separate connection,
opened for that moment. You can open both at the top of a module: they connect at the first use.

    apps, models   the app, and read-only models of the records and the outbox
    admin          shows them, and changes nothing
    migrations     create the same tables as ``twicesafe migrate``, or keep existing ones
    tables         how the migrations do that
    opening        from DATABASES to a store URL
    database       the store behind that URL, opened when it is needed
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._opening import open_inbox, open_outbox

__all__ = ["open_inbox", "open_outbox"]


if not TYPE_CHECKING:  # a type checker must not believe that every name exists

    def __getattr__(name: str) -> Any:
        if name in __all__:  # Django loads this package before its settings are available
            from . import _opening as opening

            return getattr(opening, name)
        raise AttributeError(name)
