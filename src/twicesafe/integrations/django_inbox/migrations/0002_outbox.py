"""The tables of the outbox. They stay empty if you do not use it."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations

from twicesafe.integrations.django_inbox._tables import make, unmake


def _make(apps: Any, schema_editor: Any) -> None:
    make(schema_editor, "outbox", 1)


def _unmake(apps: Any, schema_editor: Any) -> None:
    unmake(schema_editor, "outbox")


class Migration(migrations.Migration):  # type: ignore[misc]
    dependencies: ClassVar[list[tuple[str, str]]] = [("twicesafe", "0001_records")]
    operations: ClassVar[list[Any]] = [migrations.RunPython(_make, _unmake, atomic=False)]
