"""MCP: a middleware of FastMCP that lets a tool call happen once, even if the client sends it again.

    server = FastMCP("shop")
    server.add_middleware(IdempotentTools(receiver, {                        # an AsyncReceiver
        "charge": ToolRule(identity=("order_id",), prose=("note",), probe=find_charge),
    }))

MCP gives every request a new id, and a session may be new after a reconnect, so neither can be a key. The
key is what the client's program put into ``_meta`` as ``dev.twicesafe/key``. Without it, the key is made from
the principal of the access token, the run (``dev.twicesafe/run`` in ``_meta``, if given), the tool, and the
arguments that the rule names as identity.

A replay is the recorded result with ``dev.twicesafe/replayed`` in ``_meta`` and one more text block for the
model. A refusal is a result with ``isError`` and a text that says what to do; so is a replay whose value does
not fit the tool's output schema, because clients refuse it otherwise. Listed tools that have a rule
get ``idempotentHint``.

A tool says that nothing was done by raising `ToolError` (with no other error behind it) or by a result with
``is_error``. What another server answers, behind a FastMCP proxy or called by the tool, does not say so, and
neither does an error of another tool that this one called. A tool that asks the client for input must ask
before its effect, because the next leg runs it again.

If FastMCP runs a call as a background task, the task is recorded: a repeat gets the same task.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from traceback import walk_tb
from typing import Any, Final

from .._core.tool_calls.answers import META, ToolAnswer, answer_to, key_in, run_in
from .._core.tool_calls.rule import Done, NotDone, ToolCall, ToolRule
from .._core.tool_calls.statements import stated_outside
from .._edges.tool_guard import Invocation, ToolGuard
from .._values.drivers import driver
from ..errors import InvalidKeyError
from ..receiver import AsyncReceiver
from ..receiver._base import check_receiver

with driver("fastmcp"):
    import mcp_types
    from fastmcp import FastMCP
    from fastmcp.exceptions import ToolError, ValidationError
    from fastmcp.server.dependencies import get_access_token
    from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
    from fastmcp.server.providers.fastmcp_provider import FastMCPProviderTool
    from fastmcp.server.providers.proxy import ProxyTool
    from fastmcp.tools.base import InputRequiredToolResult, Tool, ToolResult
    from fastmcp.tools.function_tool import FunctionTool
    from fastmcp.tools.tool_transform import TransformedTool
    from fastmcp.utilities.tasks import TASKS_EXTENSION_ID
    from jsonschema.validators import validator_for  # type: ignore[import-untyped]

__all__ = ["Done", "IdempotentTools", "NotDone", "ToolCall", "ToolRule"]

_KEPT: Final = "twicesafe.mcp"
_TASK: Final = "twicesafe.mcp.task"
_FRAMEWORK: Final = ("fastmcp",)
_HASHED: Final = re.compile(r"([0-9a-f]{12})_(.+)")
_WRAPPED: Final = "x-fastmcp-wrap-result"
"""In an output schema: FastMCP puts the value of the function under ``result``."""


class IdempotentTools(Middleware):
    """Add it last: middleware that authenticates, and any that retries, must be around it.

    ``principal``: a function that returns on whose behalf a call is made; by default the issuer and subject
    of the access token, or its client. ``run``: a function of the request's ``_meta`` that returns the run.
    """

    def __init__(
        self,
        receiver: AsyncReceiver,
        tools: Mapping[str, ToolRule],
        *,
        principal: Callable[[], str | None] | None = None,
        run: Callable[[Mapping[str, Any]], str | None] = run_in,
    ) -> None:
        check_receiver(receiver, AsyncReceiver, type(self).__name__)
        self._principal = principal or token_principal
        self._run = run
        self._guard = ToolGuard(
            receiver,
            tools,
            keep=_kept,
            is_final=lambda result: (
                not isinstance(result, ToolResult)
                or not (result.is_error or isinstance(result, InputRequiredToolResult))
            ),
            states_not_done=_states_not_done,
            wrappers=_FRAMEWORK,
        )

    async def on_list_tools(
        self,
        context: MiddlewareContext[mcp_types.ListToolsRequest],
        call_next: CallNext[mcp_types.ListToolsRequest, Sequence[Tool]],
    ) -> Sequence[Tool]:
        """Tell clients which tools are safe to call again."""
        tools = await call_next(context)
        self._guard.look_for_tools(tool.name for tool in tools)
        return [_hinted(tool) if self._guard.guards(tool.name) else tool for tool in tools]

    async def on_call_tool(
        self,
        context: MiddlewareContext[mcp_types.CallToolRequestParams],
        call_next: CallNext[mcp_types.CallToolRequestParams, ToolResult],
    ) -> ToolResult:
        """Call the tool once per key; answer every repeat."""
        here = context.fastmcp_context
        if here is None:
            return await call_next(context)
        tool = await self._guarded(here.fastmcp, context.message.name)
        if tool is None:
            return await call_next(context)
        name = tool.name
        sent: Any = here.request_context.meta if here.request_context is not None else None
        meta: Mapping[str, Any] = sent or {}
        try:
            key, run = key_in(meta), self._run(meta)
        except InvalidKeyError as error:
            return _said(answer_to(error, name), tool)

        async def invoke() -> Any:
            try:
                result: Any = await call_next(context)
            except ValidationError as error:
                if _tools_in(error) > 1:
                    raise
                raise _ArgumentsRefused(error) from None
            if not isinstance(result, ToolResult):
                return result  # a background task, which has begun
            guarded_there = META + "state" in (result.meta or {})
            if result.is_error and not guarded_there and await _is_elsewhere(tool):
                raise _ElsewhereError(result)
            return result

        try:
            answer = await self._guard.call_async(
                invoke,
                Invocation(
                    tool=name,
                    arguments=context.message.arguments or {},
                    schema=tool.parameters,
                    key=key,
                    principal=self._principal(),
                    run=run,
                ),
            )
        except _ArgumentsRefused as refused:
            raise refused.error from refused.error.__cause__
        except _ElsewhereError as error:
            return error.result
        if answer.state == "done":
            return answer.result  # type: ignore[no-any-return]
        if isinstance(answer.result, dict) and _TASK in answer.result:
            if here.client_extension_settings(TASKS_EXTENSION_ID) is not None:
                return _Task.model_validate(answer.result[_TASK])  # type: ignore[return-value]
            answer.is_kept = False  # this client cannot ask for its result
        return _replay(answer, tool) if answer.has_result else _said(answer, tool)

    async def _guarded(self, server: FastMCP[Any], name: str) -> Tool | None:
        """The tool that FastMCP will call, if it has a rule. Apps put a hash in front of its name."""
        tool = None
        if self._guard.guards(name):
            tool = await server.get_tool(name)
        if tool is None and (hashed := _HASHED.fullmatch(name)):
            tool = await server.get_tool_by_hash(*hashed.groups())
        return tool if tool is not None and self._guard.guards(tool.name) else None


class _ArgumentsRefused(Exception):  # noqa: N818 - it never leaves this module
    """FastMCP refused the arguments, so the tool was not called."""

    def __init__(self, error: ValidationError) -> None:
        super().__init__(str(error))
        self.error = error


class _ElsewhereError(ToolError):
    """Another server answered with an error. A rule that lists `ToolError` says that nothing was done."""

    def __init__(self, result: ToolResult) -> None:
        super().__init__("the server behind this one answered with an error")
        self.result = result


_stated = stated_outside(_FRAMEWORK, (ToolError,))


def _states_not_done(error: BaseException) -> bool:
    if isinstance(error, _ElsewhereError):
        return False
    return isinstance(error, _ArgumentsRefused) or (_stated(error) and _tools_in(error) <= 1)


def _tools_in(error: BaseException) -> int:
    """How many tools the error went through: a tool may call another one after its effect."""
    frames = walk_tb(error.__traceback__)
    return sum(frame.f_code is FunctionTool.run.__code__ for frame, _ in frames)


async def _is_elsewhere(tool: Tool | None) -> bool:
    """Whether another server runs the tool, behind mounted servers and changes of its form."""
    while tool is not None:
        if isinstance(tool, TransformedTool):
            tool = tool.parent_tool
        elif isinstance(tool, FastMCPProviderTool):
            tool = await tool._server.get_tool(tool._original_name)
        else:
            return isinstance(tool, ProxyTool)
    return True


def token_principal() -> str | None:
    """The subject of the access token of this request, or its client; None without a token.

    With the token's issuer, if it names one: two issuers may give two people the same subject.
    """
    token = get_access_token()
    if token is None:
        return None
    issuer, subject = (token.claims.get(name) for name in ("iss", "sub"))
    who = subject if isinstance(subject, str) and subject else token.client_id
    return f"{issuer} {who}" if isinstance(issuer, str) and issuer else who


def _hinted(tool: Tool) -> Tool:
    hints = tool.annotations or mcp_types.ToolAnnotations()
    hints = hints.model_copy(update={"idempotent_hint": True})
    return tool.model_copy(update={"annotations": hints})


class _Task(mcp_types.Result, extra="allow"):
    """A background task, as its client got it. Its own type is that of an extension."""


def _kept(result: Any) -> dict[str, Any]:
    if not isinstance(result, ToolResult):
        return {_TASK: result.model_dump(mode="json", by_alias=True, exclude_none=True)}
    whole = mcp_types.CallToolResult(
        content=result.content, structured_content=result.structured_content, _meta=result.meta
    )
    return {_KEPT: whole.model_dump(mode="json", by_alias=True, exclude_none=True)}


def _replay(answer: ToolAnswer, tool: Tool) -> ToolResult:
    kept = answer.result
    note = mcp_types.TextContent(type="text", text=answer.text)
    if isinstance(kept, dict) and _KEPT in kept:
        first = mcp_types.CallToolResult.model_validate(kept[_KEPT])
        return ToolResult(
            content=[*first.content, note],
            structured_content=first.structured_content,
            meta={**(first.meta or {}), **answer.meta},
        )
    # A probe or an operator recorded it: the value that the tool's function would have returned.
    structured = {"result": kept} if (tool.output_schema or {}).get(_WRAPPED) else kept
    fits = _fits(structured, tool)
    return ToolResult(
        content=[note] if kept is None else [*ToolResult(content=kept).content, note],
        structured_content=structured if fits and isinstance(structured, dict) else None,
        meta=answer.meta,
        is_error=not fits,
    )


def _said(answer: ToolAnswer, tool: Tool) -> ToolResult:
    is_error = answer.state != "replayed" or not _fits(None, tool)
    return ToolResult(content=answer.text, meta=answer.meta, is_error=is_error)


def _fits(structured: Any, tool: Tool) -> bool:
    """Clients raise an error of their own for a result that the output schema does not allow."""
    if tool.output_schema is None:
        return True
    return isinstance(structured, dict) and bool(
        validator_for(tool.output_schema)(tool.output_schema).is_valid(structured)
    )
