"""Pydantic AI: a toolset around yours that lets a tool call happen once, even if the model repeats it.

    tools = IdempotentTools(FunctionToolset([charge]), receiver, {            # an AsyncReceiver
        "charge": ToolRule(identity=("order_id",), prose=("note",), probe=find_charge),
    })
    agent = Agent(model, toolsets=[tools])

A ``run_id`` or ``conversation_id`` that you do not pass is a new one after a restart, so none of them is
part of the key by default. If yours are stable, say ``run=lambda ctx: ctx.conversation_id``.

A replay is the recorded value, in a `ToolReturn` with a note for the model and the state as metadata. A
refusal is `ToolFailed` with a text that says what to do; it uses up no retries.

A tool says that nothing was done by `ModelRetry` or `ToolFailed` (with no other error behind it), or by
deferring the call. Pydantic AI raises these two as well, when a tool exceeds its time limit or an MCP server
answers with an error: then the outcome is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final

from .._core.tool_calls.answers import ToolAnswer
from .._core.tool_calls.rule import Done, NotDone, ToolCall, ToolRule
from .._core.tool_calls.statements import stated_outside
from .._edges.tool_guard import Invocation, ToolGuard
from .._values.drivers import driver
from ..receiver import AsyncReceiver
from ..receiver._base import check_receiver

with driver("pydantic_ai"):
    from pydantic import TypeAdapter
    from pydantic_ai import ModelRetry, RunContext, ToolReturn
    from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ToolFailed
    from pydantic_ai.messages import ToolReturnContent, UserContent
    from pydantic_ai.toolsets import AbstractToolset, ToolsetTool, WrapperToolset
    from pydantic_core import to_jsonable_python

__all__ = ["Done", "IdempotentTools", "NotDone", "ToolCall", "ToolRule"]

_KEPT: Final = "twicesafe.pydantic_ai"


@dataclass
class IdempotentTools(WrapperToolset[Any]):
    """Put it around a toolset, and pass it to an agent."""

    wrapped: AbstractToolset[Any]
    receiver: AsyncReceiver
    tools: Mapping[str, ToolRule]
    _: KW_ONLY
    principal: Callable[[RunContext[Any]], str | None] | None = None
    """Returns on whose behalf a call is made; by default that is not part of the key."""
    run: Callable[[RunContext[Any]], str | None] | None = None
    """Returns the run that a call belongs to; by default that is not part of the key."""
    _shared: ToolGuard[AsyncReceiver] | None = field(default=None, repr=False)
    """Made below. Pydantic AI copies dynamic toolsets for each run, and the copies share it."""

    def __post_init__(self) -> None:
        check_receiver(self.receiver, AsyncReceiver, type(self).__name__)
        self._guard = self._shared = self._shared or ToolGuard(
            self.receiver,
            self.tools,
            keep=_kept,
            states_not_done=_states_not_done,
        )

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        """The tools of the wrapped toolset."""
        tools = await super().get_tools(ctx)
        self._guard.look_for_tools(tools)
        return tools

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        """Call the tool once per key; answer every repeat."""
        if not self._guard.guards(name):
            return await super().call_tool(name, tool_args, ctx, tool)
        inner = super().call_tool
        answer = await self._guard.call_async(
            lambda: inner(name, tool_args, ctx, tool),
            Invocation(
                tool=name,
                arguments=_as_declared(tool_args, tool.tool_def.parameters_json_schema),
                schema=tool.tool_def.parameters_json_schema,
                principal=self.principal(ctx) if self.principal else None,
                run=self.run(ctx) if self.run else None,
            ),
        )
        if answer.state == "done":
            return answer.result
        if answer.state != "replayed":
            raise ToolFailed(answer.text)
        return _replay(answer)


def _as_declared(arguments: dict[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of a model that is the only argument: in the schema of Pydantic AI they are the arguments."""
    if len(arguments) != 1 or arguments.keys() & schema.get("properties", {}).keys():
        return arguments
    (model,) = arguments.values()
    fields = TypeAdapter(type(model)).dump_python(model, by_alias=True)
    return fields if isinstance(fields, dict) else arguments


_stated = stated_outside(("pydantic_ai",), (ModelRetry, ToolFailed))


def _states_not_done(error: BaseException) -> bool:
    return isinstance(error, (CallDeferred, ApprovalRequired)) or _stated(error)


_RESULT: Final[TypeAdapter[Any]] = TypeAdapter(ToolReturnContent)
_CONTENT: Final[TypeAdapter[Any]] = TypeAdapter(str | list[UserContent] | None)
"""They read images and files from the JSON that is kept of them."""


def _kept(result: Any) -> Any:
    """As the model gets it: Pydantic AI sends JSON."""
    if isinstance(result, ToolReturn):
        value, content = result.return_value, result.content
        return {_KEPT: {"value": to_jsonable_python(value), "content": to_jsonable_python(content)}}
    return to_jsonable_python(result)


def _replay(answer: ToolAnswer) -> ToolReturn[Any]:
    if not answer.is_kept:
        return ToolReturn(return_value=answer.text, metadata=answer.meta)
    value, content = answer.result, None
    if isinstance(value, dict) and _KEPT in value:
        value, content = value[_KEPT]["value"], _CONTENT.validate_python(value[_KEPT]["content"])
    said: Any = answer.text
    if isinstance(content, str):
        said = f"{content}\n\n{said}"
    elif content is not None:
        said = [*content, said]
    return ToolReturn(
        return_value=_RESULT.validate_python(value), content=said, metadata=answer.meta
    )
