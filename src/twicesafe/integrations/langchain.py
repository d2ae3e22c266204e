"""LangChain: a middleware of agents that lets a tool call happen once, even if the model repeats it.

    agent = create_agent(model, tools=[charge], middleware=[IdempotentTools(receiver, {
        "charge": ToolRule(identity=("order_id",), prose=("note",), probe=find_charge),
    })])

It takes a `Receiver` for agents that are invoked, and an `AsyncReceiver` for agents that are awaited. The
run is LangGraph's ``thread_id``, which a resumed graph keeps; the id of a tool call is new each time, and
not used. Put it last, next to the tools: then retries of other middleware get recorded answers.

A replay is a `ToolMessage` with the recorded content, a note for the model, and the state in
``response_metadata``. An artifact that cannot be stored, or is too long, is left out. A refusal is one with
``status="error"``.

A tool says that nothing was done by `ToolException` (with no other error behind it), by returning a
message with ``status="error"``, or by an interrupt of the graph. LangChain turns other errors into
such messages, too: each `ValidationError`, also if the answer of the bank did not fit. So the error
that the tool raised decides.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from .._core.tool_calls.answers import ToolAnswer
from .._core.tool_calls.rule import Done, NotDone, ToolCall, ToolRule
from .._core.tool_calls.statements import stated_outside
from .._edges.tool_guard import Invocation, ToolGuard
from .._values.codecs import DEFAULT_CODEC
from .._values.drivers import driver
from ..errors import ConfigurationError, text_of
from ..receiver import AsyncReceiver, Receiver
from ..receiver._base import check_receiver

with driver("langchain"):
    from langchain.agents.middleware import AgentMiddleware
    from langchain.tools.tool_node import ToolCallRequest
    from langchain_core.messages import ToolMessage
    from langchain_core.tools import BaseTool, ToolException
    from langgraph.errors import GraphBubbleUp, ParentCommand
    from langgraph.types import Command

__all__ = ["Done", "IdempotentTools", "NotDone", "ToolCall", "ToolRule"]

_log = logging.getLogger("twicesafe")

_KEPT: Final = "twicesafe.langchain"
_FRAMEWORK: Final = ("langchain", "langchain_core", "langchain_mcp_adapters", "langgraph")


class IdempotentTools(AgentMiddleware[Any, Any, Any]):
    """Pass it to ``create_agent(middleware=[…])``.

    ``principal`` and ``run`` are functions of LangChain's request that return on whose behalf the call is
    made, and which run it belongs to; by default no principal, and the ``thread_id``.
    """

    def __init__(
        self,
        receiver: Receiver | AsyncReceiver,
        tools: Mapping[str, ToolRule],
        *,
        principal: Callable[[ToolCallRequest], str | None] | None = None,
        run: Callable[[ToolCallRequest], str | None] | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(receiver, Receiver):
            check_receiver(receiver, AsyncReceiver, type(self).__name__)
        self._principal = principal or (lambda _: None)
        self._run = run or thread_of
        self._policy = receiver.policy
        self._guard: ToolGuard[Any] = ToolGuard(
            receiver,
            tools,
            keep=self._kept,
            is_final=lambda result: not _is_error(result),
            states_not_done=_states_not_done,
        )

    def wrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]],
    ) -> ToolMessage | Command[Any]:
        """Call the tool once per key; answer every repeat."""
        if request.tool is None or not self._guard.guards(request.tool_call["name"]):
            return handler(request)
        self._expect(blocking=True)
        body = _Body(request.tool)
        watched = request.override(tool=body.tool)

        def invoke() -> Any:
            try:
                return body.result(handler(watched))
            except ParentCommand as command:  # a graph inside the tool has done it
                return command

        try:
            answer = self._guard.call(invoke, self._about(request))
        except Exception as error:
            return body.message_of(error)  # type: ignore[no-any-return]
        return _message(answer, request)

    async def awrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]],
    ) -> ToolMessage | Command[Any]:
        """Async version of `wrap_tool_call`."""
        if request.tool is None or not self._guard.guards(request.tool_call["name"]):
            return await handler(request)
        self._expect(blocking=False)
        body = _Body(request.tool)
        watched = request.override(tool=body.tool)

        async def invoke() -> Any:
            try:
                return body.result(await handler(watched))
            except ParentCommand as command:
                return command

        try:
            answer = await self._guard.call_async(invoke, self._about(request))
        except Exception as error:
            return body.message_of(error)  # type: ignore[no-any-return]
        return _message(answer, request)

    def _kept(self, result: ToolMessage) -> dict[str, Any]:
        if not isinstance(result, ToolMessage):
            raise TypeError("a Command has no plain form")
        kept = {"content": result.content, "artifact": result.artifact}
        if result.artifact is not None:
            try:
                payload = (self._policy.codec or DEFAULT_CODEC).encode(kept)
                why = "is too long" if len(payload) > self._policy.max_result_bytes else ""
            except Exception as error:
                why = f"cannot be stored: {text_of(error)}"
            if why:  # the model gets only the content
                _log.warning(
                    "a repeat of %s gets no artifact: it %s", result.name or "the tool", why
                )
                del kept["artifact"]
        return {_KEPT: kept}

    def _expect(self, *, blocking: bool) -> None:
        if self._guard.is_blocking is not blocking:
            how, wanted = ("invoke", "a Receiver") if blocking else ("ainvoke", "an AsyncReceiver")
            raise ConfigurationError(
                f"this agent is run by {how}, so IdempotentTools needs {wanted}; nothing was run"
            )

    def _about(self, request: ToolCallRequest) -> Invocation:
        assert request.tool is not None
        return Invocation(
            tool=request.tool_call["name"],
            arguments=request.tool_call["args"],
            schema=schema_of(request.tool),
            principal=self._principal(request),
            run=self._run(request),
        )


_stated = stated_outside(_FRAMEWORK, (ToolException,))


def _states_not_done(error: BaseException) -> bool:
    return isinstance(error, GraphBubbleUp) or _stated(error)


class _ResultRefusedError(Exception):
    """The tool returned, and LangChain made an error of what it returned."""


class _Body:
    """What the function of a tool raises, before LangChain makes a message of it."""

    def __init__(self, tool: BaseTool) -> None:
        self.tool = tool.model_copy()
        self._error: Exception | None = None
        self._message: Any = None
        for name, wrap in (("_run", self._watched), ("_arun", self._watched_async)):
            object.__setattr__(self.tool, name, wrap(getattr(tool, name)))

    def _watched(self, run: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(run)
        def watched(*args: Any, **kwargs: Any) -> Any:
            try:
                return self._returned(run(*args, **kwargs))
            except Exception as error:
                self._error = error
                raise

        return watched

    def _watched_async(self, run: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
        @functools.wraps(run)
        async def watched(*args: Any, **kwargs: Any) -> Any:
            try:
                return self._returned(await run(*args, **kwargs))
            except Exception as error:
                self._error = error
                raise

        return watched

    def _returned(self, value: Any) -> Any:
        if not _is_error(value):
            self._error = _ResultRefusedError("LangChain refused what the tool returned")
        return value

    def result(self, message: Any) -> Any:
        """The message; raises what the function raised, if the message tells of that."""
        if self._error is None or not _is_error(message):
            return message
        self._message = message
        raise self._error

    def message_of(self, error: Exception) -> Any:
        """The message that LangChain made of an error; raises the error if there is none."""
        if error is self._error and self._message is not None:
            return self._message
        raise error


def _is_error(result: Any) -> bool:
    return getattr(result, "status", "") == "error"


def schema_of(tool: BaseTool) -> dict[str, Any]:
    """All of it: the schemas of nested models are outside the properties."""
    schema: Any = tool.args_schema if isinstance(tool.args_schema, dict) else tool.tool_call_schema
    if isinstance(schema, dict):
        return schema
    if hasattr(schema, "model_json_schema"):
        return schema.model_json_schema()  # type: ignore[no-any-return]
    return schema.schema()  # type: ignore[no-any-return]  # of Pydantic 1


def thread_of(request: ToolCallRequest) -> str | None:
    """LangGraph's ``thread_id``; None if the agent has none."""
    thread = request.runtime.config.get("configurable", {}).get("thread_id")
    return None if thread is None else str(thread)


def _message(answer: ToolAnswer, request: ToolCallRequest) -> ToolMessage | Command[Any]:
    if answer.state == "done":
        if isinstance(answer.result, ParentCommand):
            raise answer.result
        return answer.result  # type: ignore[no-any-return]
    content: Any = answer.text
    artifact = None
    if answer.has_result:
        kept = answer.result
        if isinstance(kept, dict) and _KEPT in kept:
            first, artifact = kept[_KEPT]["content"], kept[_KEPT].get("artifact")
        else:
            first = kept if isinstance(kept, str) else str(kept)
        if isinstance(first, str):
            content = f"{first}\n\n{answer.text}"
        else:
            content = [*first, {"type": "text", "text": answer.text}]
    return ToolMessage(
        content=content,
        artifact=artifact,
        name=request.tool_call["name"],
        tool_call_id=request.tool_call["id"],
        status="success" if answer.state == "replayed" else "error",
        response_metadata=answer.meta,
    )
