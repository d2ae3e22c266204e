"""The JSON schema of the settings file, for editors."""

from __future__ import annotations

from typing import Any

from .._values.settings import seconds
from ._kinds import DURATION
from ._model import REQUIRED, Section, Setting
from ._sections import SECTIONS, section_named

__all__ = ["schema"]


def schema() -> dict[str, Any]:
    """JSON Schema, draft 2020-12, of the whole file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Settings of twicesafe",
        "type": "object",
        "additionalProperties": False,
        "properties": {name: _section(section_named(name)) for name in SECTIONS},
    }


def _section(section: Section) -> dict[str, Any]:
    notes = section.notes()
    made = _table(section.words)
    for inner in section.inner:
        made["properties"][inner] = _table("")
    for setting in section.settings.values():
        *above, name = setting.name.split(".")
        holder = made["properties"][above[0]] if above else made
        holder["properties"][name] = _setting(section, setting, notes.get(setting.name, ""))
    return made


def _table(words: str) -> dict[str, Any]:
    said = {"description": words} if words else {}
    return {"type": "object", **said, "additionalProperties": False, "properties": {}}


def _setting(section: Section, setting: Setting, note: str) -> dict[str, Any]:
    made = setting.field.schema()
    if note:
        made["description"] = note
    if callable(setting.field.default):  # of the machine, not of the model
        return made
    default = section.default(setting.name, {})
    if default is not REQUIRED and default is not None:
        made["default"] = _plain(setting, default)
    return made


def _plain(setting: Setting, default: Any) -> Any:
    if isinstance(default, frozenset):
        return sorted(default)
    if isinstance(default, tuple):
        return list(default)
    if isinstance(default, bytes):
        return default.decode()
    return seconds(default) if setting.field.kind is DURATION else default
