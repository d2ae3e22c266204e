"""The model of outbox messages. It changes nothing in the database: 0002 has made the table."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):  # type: ignore[misc]
    dependencies: ClassVar[list[tuple[str, str]]] = [("twicesafe", "0003_narrow")]
    operations: ClassVar[list[Any]] = [
        migrations.CreateModel(
            name="OutboxMessage",
            fields=[
                ("n", models.BigIntegerField(primary_key=True, serialize=False)),
                ("created_at", models.BigIntegerField()),
                ("slot", models.SmallIntegerField()),
                ("id", models.CharField(max_length=255)),
                ("aggregatetype", models.CharField(max_length=255)),
                ("aggregateid", models.CharField(max_length=255, null=True)),
                ("type", models.CharField(max_length=255)),
            ],
            options={"db_table": "twicesafe_outbox", "managed": False},
        ),
    ]
