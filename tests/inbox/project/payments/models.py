"""One table of the shop."""

from __future__ import annotations

from django.db import models


class Payment(models.Model):  # type: ignore[misc]
    amount = models.IntegerField()

    class Meta:
        app_label = "payments"
