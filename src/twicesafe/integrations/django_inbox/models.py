"""Records as a model, to look at: the tables belong to twicesafe, and only it writes to them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import models

from ..._values.records import moment

__all__ = ["Record"]


class Record(models.Model):  # type: ignore[misc]
    """One key: its state and how often it was started. `twicesafe keys show` tells the rest."""

    id: Any = models.BinaryField(primary_key=True)
    state: Any = models.SmallIntegerField()
    fence: Any = models.BigIntegerField()
    attempt: Any = models.IntegerField()
    created_at: Any = models.BigIntegerField()
    changed_at: Any = models.BigIntegerField()
    expires_at: Any = models.BigIntegerField()

    class Meta:
        managed = False
        db_table = "twicesafe_records"

    @property
    def changed(self) -> datetime:
        return moment(self.changed_at)

    def __str__(self) -> str:
        return bytes(self.id)[:4].hex()
