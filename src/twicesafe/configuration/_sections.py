"""The sections of the settings file. A new command needs one line in `SECTIONS`.

1. Write a frozen dataclass with a default and a text under each field, and `check_fields` in its
   ``__post_init__``: `_commands` has the smallest ones.
2. Name its `Section` in the table below. Then the file, the variables (``TWICESAFE_RELAY_TO``), ``twicesafe
   config check|show|schema`` and the reference know it.
3. In the command: ``settings, found = settled(("relay",), store, config, {"relay": given})``.

The table names the models as text, so that an edge is imported only when it is used.
"""

from __future__ import annotations

import functools
import importlib
from typing import Final

from ._model import Section

__all__ = ["SECTIONS", "section_named"]

SECTIONS: Final = {
    "store": "twicesafe.configuration._commands:STORE",
    "policy": "twicesafe.configuration._commands:POLICY",
    "proxy": "twicesafe._proxy.settings:PROXY_SECTION",
    "http": "twicesafe._proxy.settings:HTTP_SECTION",
    "mcp": "twicesafe._proxy.mcp_settings:MCP_SECTION",
    "relay": "twicesafe.configuration._commands:RELAY",
    "consume": "twicesafe.configuration._commands:CONSUME",
    "complete": "twicesafe.configuration._commands:COMPLETE",
    "sweep": "twicesafe.configuration._commands:SWEEP",
    "dashboard": "twicesafe.dashboard._settings:DASHBOARD_SECTION",
}


@functools.cache
def section_named(name: str) -> Section:
    module, _, attribute = SECTIONS[name].partition(":")
    found: Section = getattr(importlib.import_module(module), attribute)
    return found
