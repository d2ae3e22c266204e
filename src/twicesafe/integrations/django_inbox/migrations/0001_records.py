"""The tables of records, as `stores/migrations` writes them for this database."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations, models

from twicesafe.stores.migrating import first_steps


def _make(apps: Any, schema_editor: Any) -> None:
    vendor = schema_editor.connection.vendor
    for statement in first_steps(vendor, "twicesafe", 1):
        schema_editor.execute(statement, params=None)


def _drop(apps: Any, schema_editor: Any) -> None:
    vendor = schema_editor.connection.vendor
    for table in ("records", "audit", "meta", *(("results",) if vendor == "sqlite" else ())):
        schema_editor.execute(f"DROP TABLE twicesafe_{table}", params=None)


class Migration(migrations.Migration):  # type: ignore[misc]
    initial = True
    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar[list[Any]] = [
        migrations.RunPython(_make, _drop, atomic=False),  # MySQL: DDL in no block
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
