"""Records move to a narrower table, in this one transaction. Nodes of older versions are refused then.

For very many records run ``twicesafe migrate`` first: it moves them in small batches, beside running nodes.
"""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations

from twicesafe.integrations.django_inbox._tables import make


def _make(apps: Any, schema_editor: Any) -> None:
    make(schema_editor, "records", 3)


class Migration(migrations.Migration):  # type: ignore[misc]
    dependencies: ClassVar[list[tuple[str, str]]] = [("twicesafe", "0002_outbox")]
    operations: ClassVar[list[Any]] = [
        migrations.RunPython(_make, migrations.RunPython.noop, atomic=False),
        migrations.SeparateDatabaseAndState(
            state_operations=[migrations.AlterModelTable("record", "twicesafe_keys")]
        ),
    ]
