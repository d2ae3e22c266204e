"""Settings of MCP tools behind the proxy.

[mcp]
path = "/mcp"

[mcp.tools.charge]
identity = ["order_id"]
prose = ["note"]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

import msgspec

from .._core.tool_calls.rule import RETENTION, ToolRule
from .._values.settings import refuse_unknown
from ..configuration._fields import check_fields, fields_of
from ..configuration._kinds import WRONG, Seconds, ValueKind
from ..configuration._model import Section
from ..errors import ConfigurationError

__all__ = ["MCP_SECTION", "McpSettings", "ToolSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSettings:
    """How the calls of one tool are recognised and protected."""

    identity: tuple[str, ...] = ()
    """The arguments that say which operation this is; empty: every call must bring its key in _meta."""
    prose: tuple[str, ...] = ()
    """Arguments that a model may reword each time. They are not compared."""
    takeover: Literal["hold", "retry"] = "hold"
    """After an unknown outcome: hold the key, or let the next call run."""
    retention: Seconds = RETENTION
    """How long a repeat gets the recorded answer."""
    errors: Literal["unknown", "not_done"] = "unknown"
    """What a result with isError means: the outcome is unknown, or nothing was done."""
    approval: bool = False
    """A person must approve each call first."""

    def __post_init__(self) -> None:
        check_fields(self)
        self.rule()

    def rule(self) -> ToolRule:
        return ToolRule(
            identity=self.identity or None,
            prose=self.prose,
            takeover=self.takeover,
            retention=self.retention,
            approval=self.approval,
        )


def _tools(value: Any, name: str) -> Any:
    """The tools of a file: a table for each, by name."""
    if not isinstance(value, Mapping) or not all(isinstance(v, Mapping) for v in value.values()):
        return WRONG
    for tool, given in value.items():
        try:
            known = [each.name for each in fields_of(ToolSettings)]
            refuse_unknown(list(map(str, given)), known, "setting")
            ToolSettings(**given)
        except ConfigurationError as error:
            raise ConfigurationError(f"{name}.{tool}: {error.message}") from error
    return {str(tool): dict(given) for tool, given in value.items()}


TOOLS: Final = ValueKind(
    'a table for each tool: [mcp.tools.charge] identity = ["order_id"]',
    _tools,
    msgspec.json.decode,
    {
        "type": "object",
        "additionalProperties": {
            "type": "object",
            "additionalProperties": False,
            "properties": {each.name: each.schema() for each in fields_of(ToolSettings)},
        },
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class McpSettings:
    """The tools of one MCP server, which speaks streamable HTTP."""

    path: str = "/mcp"
    """The path of the server's MCP endpoint."""
    run: Literal["meta", "session"] = "meta"
    """What separates the keys of two runs: `dev.twicesafe/run` in `_meta`, or the MCP session."""
    tools: Annotated[dict[str, Any], TOOLS] = field(default_factory=dict)
    """A table of settings for each protected tool; in a variable, JSON."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.path.startswith("/"):
            raise ConfigurationError(f"path={self.path!r} is not valid: it begins with /")

    def each_tool(self) -> dict[str, ToolSettings]:
        return {name: ToolSettings(**given) for name, given in self.tools.items()}


MCP_SECTION: Final = Section(
    "mcp", McpSettings, "MCP tools behind `twicesafe proxy`: each call happens once."
)
