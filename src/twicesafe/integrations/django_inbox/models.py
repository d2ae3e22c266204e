"""Records and outbox messages as read-only models: the tables belong to twicesafe, and only
twicesafe writes to them."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import models

from ..._values.records import moment

__all__ = ["OutboxMessage", "Record"]


class IdentityField(models.BinaryField):  # type: ignore[misc]
    """The id of a key, of which the database keeps 16 bytes: on PostgreSQL as a UUID."""

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        kept = bytes(value)[:16]
        if connection.vendor == "postgresql":
            return UUID(bytes=kept)
        return super().get_db_prep_value(kept, connection, prepared)

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        return value.bytes if isinstance(value, UUID) else value


class Record(models.Model):  # type: ignore[misc]
    """One key: its state and how often it was started. `twicesafe keys show` shows the rest."""

    id: Any = IdentityField(primary_key=True)
    """`filter` takes the 32 bytes of `key.id` too."""
    state: Any = models.SmallIntegerField()
    fence: Any = models.BigIntegerField()
    attempt: Any = models.IntegerField()
    created_at: Any = models.BigIntegerField(null=True)
    """PostgreSQL: NULL if the record has not changed since."""
    changed_at: Any = models.BigIntegerField()
    expires_at: Any = models.BigIntegerField(null=True)

    class Meta:
        managed = False
        db_table = "twicesafe_keys"

    @property
    def changed(self) -> datetime:
        return moment(self.changed_at)

    def __str__(self) -> str:
        # On PostgreSQL it is a UUID.
        kept = self.id.bytes if isinstance(self.id, UUID) else bytes(self.id)
        return kept[:4].hex()


class OutboxMessage(models.Model):  # type: ignore[misc]
    """A message that waits for a relay. Its columns have the names of Debezium's outbox."""

    n: Any = models.BigIntegerField(primary_key=True)
    created_at: Any = models.BigIntegerField()
    slot: Any = models.SmallIntegerField()
    id: Any = models.CharField(max_length=255)
    """What consumers deduplicate by."""
    aggregatetype: Any = models.CharField(max_length=255)
    """The topic."""
    aggregateid: Any = models.CharField(max_length=255, null=True)
    """The ordering key."""
    type: Any = models.CharField(max_length=255)

    class Meta:
        managed = False
        db_table = "twicesafe_outbox"

    def __str__(self) -> str:
        return str(self.n)
