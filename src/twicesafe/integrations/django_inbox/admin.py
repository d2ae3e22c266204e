"""The admin of records and outbox messages: read-only. Operators act with ``manage.py twicesafe``.

Loaded by `django.contrib.admin`, if the project has it. A user needs Django's permission to view the model.
Keys and payloads are not shown: they come from senders and may name people.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.contrib import admin
from django.utils import timezone

from ..._engines.sql.commands import STATES
from ..._values.records import moment
from .models import OutboxMessage, Record

__all__ = ["OutboxMessageAdmin", "RecordAdmin"]


class ReadOnlyAdmin(admin.ModelAdmin):  # type: ignore[misc]
    """A list without links, forms and actions: only twicesafe writes to its tables."""

    list_display_links = None
    actions = None
    show_full_result_count = False
    list_per_page = 50

    def has_add_permission(self, request: Any) -> bool:
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        return False


def _shown(milliseconds: int) -> datetime:
    """In the project's time zone. With USE_TZ off, Django shows a time as it is."""
    local: datetime = timezone.localtime(moment(milliseconds))
    return local


class StateFilter(admin.SimpleListFilter):  # type: ignore[misc]
    title = parameter_name = "state"

    def lookups(self, request: Any, model_admin: Any) -> list[tuple[str, str]]:
        return [(str(number), state.value) for number, state in enumerate(STATES)]

    def queryset(self, request: Any, queryset: Any) -> Any:
        chosen = self.value()
        known = chosen is not None and chosen.isdecimal()
        return queryset.filter(state=int(chosen)) if known else queryset


@admin.register(Record)
class RecordAdmin(ReadOnlyAdmin):
    list_display = ("__str__", "state_name", "attempt", "fence", "changed", "kept_until")
    list_filter = (StateFilter,)
    ordering = ("-changed_at",)

    @admin.display(description="state", ordering="state")  # type: ignore[untyped-decorator]
    def state_name(self, record: Record) -> str:
        return str(STATES[record.state].value)

    @admin.display(description="changed", ordering="changed_at")  # type: ignore[untyped-decorator]
    def changed(self, record: Record) -> datetime:
        return _shown(record.changed_at)

    @admin.display(description="kept until", ordering="expires_at")  # type: ignore[untyped-decorator]
    def kept_until(self, record: Record) -> datetime | None:
        return _shown(record.expires_at) if record.expires_at else None


@admin.register(OutboxMessage)
class OutboxMessageAdmin(ReadOnlyAdmin):
    """What waits to be published; a relay removes it."""

    # Also `fields`: without them the page of one message would show all columns, its key too.
    list_display = fields = readonly_fields = ("n", "topic", "type", "created", "slot")
    ordering = ("n",)

    @admin.display(description="topic", ordering="aggregatetype")  # type: ignore[untyped-decorator]
    def topic(self, message: OutboxMessage) -> str:
        return str(message.aggregatetype)

    @admin.display(description="added", ordering="created_at")  # type: ignore[untyped-decorator]
    def created(self, message: OutboxMessage) -> datetime:
        return _shown(message.created_at)
