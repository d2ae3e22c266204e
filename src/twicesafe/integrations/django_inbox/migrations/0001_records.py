"""The tables of records, as `_engines.sql.migrations` writes them for this database."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations, models

from twicesafe.integrations.django_inbox._tables import make, unmake


def _make(apps: Any, schema_editor: Any) -> None:
    make(schema_editor, "records", 1)


def _unmake(apps: Any, schema_editor: Any) -> None:
    unmake(schema_editor, "records")


class Migration(migrations.Migration):  # type: ignore[misc]
    initial = True
    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar[list[Any]] = [
        migrations.RunPython(_make, _unmake, atomic=False),  # MySQL: DDL in no block
        migrations.CreateModel(
            name="Record",
            fields=[
                ("id", models.BinaryField(primary_key=True, serialize=False)),
                ("state", models.SmallIntegerField()),
                ("fence", models.BigIntegerField()),
                ("attempt", models.IntegerField()),
                ("created_at", models.BigIntegerField()),
                ("changed_at", models.BigIntegerField()),
                ("expires_at", models.BigIntegerField()),
            ],
            options={"db_table": "twicesafe_records", "managed": False},
        ),
    ]
