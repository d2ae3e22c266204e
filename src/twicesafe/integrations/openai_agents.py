"""OpenAI Agents SDK: function tools whose calls happen once, even if the model repeats them.

    agent = Agent(name="shop", tools=idempotent_tools(receiver, {             # an AsyncReceiver
        "charge": ToolRule(identity=("order_id",), prose=("note",), probe=find_charge),
    }, [charge, look_up]))

The SDK gives no id that a restarted run keeps. Say which run a call belongs to with
``run=lambda context: context.context.case_id``; by default no run is part of the key.

By default the SDK turns every error of a function tool into the text "… please try again", also a
time-out. For tools with a rule that is switched off: an error whose outcome is unknown becomes an answer
that says so, and any other error is given to the tool's own ``failure_error_function``, as before.

A tool says that nothing was done by raising `NotDone`, or an error that its rule lists in ``not_done``.

If a tool declares the type of its output, the SDK refuses any other output, and the run fails. So a
replay of such a tool is the recorded value, without a note; a refusal is the answer of a tool
output guardrail, which the SDK does not check.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

from .._core.tool_calls.answers import ToolAnswer
from .._core.tool_calls.rule import Done, NotDone, ToolCall, ToolRule, check_rules
from .._core.tool_calls.statements import modules_of
from .._edges.tool_guard import Invocation, ToolGuard
from .._values.drivers import driver
from ..errors import ConfigurationError
from ..receiver import AsyncReceiver
from ..receiver._base import check_receiver

with driver("agents"):
    from agents import (
        FunctionTool,
        ModelBehaviorError,
        Tool,
        ToolGuardrailFunctionOutput,
        ToolOutputGuardrail,
        ToolOutputGuardrailData,
    )
    from agents.tool import (
        ValidToolOutputPydanticModelsTypeAdapter,
        maybe_invoke_function_tool_failure_error_function,
        set_function_tool_failure_error_function,
    )
    from agents.tool_context import ToolContext

__all__ = ["Done", "NotDone", "ToolCall", "ToolRule", "idempotent_tools"]

_BEFORE_A_TOOL: Final = {"agents.tool", "agents.agent", "agents.function_schema", __name__}
"""The SDK reads the arguments of a tool here, before it calls the function."""
_WAITS: Final = object()
"""In place of the result of an agent that is used as a tool, and waits for a person's approval."""


def idempotent_tools(
    receiver: AsyncReceiver,
    rules: Mapping[str, ToolRule],
    tools: Iterable[Tool],
    *,
    principal: Callable[[ToolContext[Any]], str | None] | None = None,
    run: Callable[[ToolContext[Any]], str | None] | None = None,
) -> list[Tool]:
    """The same tools; those with a rule are called once per key. Your tools are not changed.

    ``principal`` and ``run`` are functions of the SDK's tool context that return on whose behalf a call
    is made, and which run it belongs to.
    """
    check_receiver(receiver, AsyncReceiver, "idempotent_tools")
    guard = ToolGuard(
        receiver,
        rules,
        keep=_kept,
        is_final=lambda result: result is not _WAITS,
        states_not_done=lambda error: isinstance(error, _ArgumentsRefused),
    )
    given = list(tools)
    named = {tool.name: tool for tool in given if isinstance(tool, FunctionTool)}
    for name in check_rules(rules):
        if name not in named:
            raise ConfigurationError(
                f"there is a rule for {name!r}, and no function tool of that name; there are "
                f"{', '.join(named) or 'none'}"
            )
        guard.check(name, named[name].params_json_schema)
    return [
        _guarded(tool, guard, principal or _none, run or _none)
        if isinstance(tool, FunctionTool) and guard.guards(tool.name)
        else tool
        for tool in given
    ]


class _ArgumentsRefused(Exception):  # noqa: N818 - it never leaves this module
    """The SDK refused the arguments, so the tool was not called."""

    def __init__(self, error: ModelBehaviorError) -> None:
        super().__init__(str(error))
        self.error = error


def _none(_: Any) -> None: ...


def _guarded(
    tool: FunctionTool,
    guard: ToolGuard[Any],
    principal: Callable[[ToolContext[Any]], str | None],
    run: Callable[[ToolContext[Any]], str | None],
) -> FunctionTool:
    inner = set_function_tool_failure_error_function(copy.copy(tool), None)  # it raises its errors
    is_agent = getattr(tool, "_is_agent_tool", False)
    is_typed = getattr(tool, "output_json_schema", None) is not None
    kind = getattr(tool, "_output_type_adapter", None)

    async def invoke(context: ToolContext[Any], input: str) -> Any:  # noqa: A002 - the SDK's name
        try:  # by the SDK's own reader: what another one refuses might run without protection
            arguments = json.loads(input) if input else {}
        except ValueError:
            return await tool.on_invoke_tool(context, input)  # it refuses them in its own words
        if not isinstance(arguments, dict):
            return await tool.on_invoke_tool(context, input)

        async def call() -> Any:
            try:
                result = await inner.on_invoke_tool(context, input)
            except ModelBehaviorError as error:  # an inner agent raises it, too
                if set(modules_of(error)) <= _BEFORE_A_TOOL:
                    raise _ArgumentsRefused(error) from None
                raise
            if result is None and is_agent:
                return _WAITS
            return _Typed(result, kind) if is_typed else result

        try:
            answer = await guard.call_async(
                call,
                Invocation(
                    tool=tool.name,
                    arguments=arguments,
                    schema=tool.params_json_schema,
                    principal=principal(context),
                    run=run(context),
                ),
            )
        except ConfigurationError:
            raise
        except Exception as raised:
            error = raised.error if isinstance(raised, _ArgumentsRefused) else raised
            said = await maybe_invoke_function_tool_failure_error_function(
                function_tool=tool, context=context, error=error
            )
            if said is None:
                raise error from error.__cause__
            return said
        return _typed_output(answer, kind) if is_typed else _output(answer)

    guarded = copy.copy(tool)
    guarded.on_invoke_tool = invoke
    if is_typed:
        others = guarded.tool_output_guardrails or []
        guarded.tool_output_guardrails = [ToolOutputGuardrail(_in_our_words, "twicesafe"), *others]
    return guarded


def _kept(result: Any) -> Any:
    """As the model gets it: the JSON of a declared type, blocks that the SDK knows, or text."""
    if isinstance(result, _Typed):
        value, kind = result
        if isinstance(value, str):
            return json.loads(value)
        if kind is None:
            return value
        return kind.dump_python(value, mode="json", by_alias=False, round_trip=True)
    listed = isinstance(result, (list, tuple))
    blocks = [_block(one) for one in (result if listed else [result])]
    if not blocks or None in blocks:
        return str(result)
    return blocks if listed else blocks[0]


def _block(given: Any) -> Any:
    """A block of text, an image or a file as JSON; None: it is none, so the SDK makes a text of it."""
    if isinstance(given, dict) and "type" not in given:
        return None
    try:
        block = ValidToolOutputPydanticModelsTypeAdapter.validate_python(given)
    except ValueError:
        return None
    return block.model_dump(mode="json", exclude_none=True)


def _output(answer: ToolAnswer) -> Any:
    if answer.state == "done":
        return None if answer.result is _WAITS else answer.result
    if not answer.has_result:
        return answer.text
    kept = answer.result
    note = {"type": "text", "text": answer.text}
    if isinstance(kept, list):
        return [*kept, note]
    if isinstance(kept, dict) and "type" in kept:
        return [kept, note]
    return f"{kept}\n\n{answer.text}"


# --- tools that declare the type of their output ---------------------------------------------


class _Typed(NamedTuple):
    """The result of a tool with a declared output type."""

    value: Any
    kind: Any
    """Pydantic's adapter of the type; None: the tool has only a schema."""


class _InOurWords(str):
    """What the model gets instead of that result."""

    __slots__ = ()


def _in_our_words(data: ToolOutputGuardrailData) -> ToolGuardrailFunctionOutput:
    if isinstance(data.output, _InOurWords):
        return ToolGuardrailFunctionOutput.reject_content(str(data.output))
    return ToolGuardrailFunctionOutput.allow()


def _typed_output(answer: ToolAnswer, kind: Any) -> Any:
    if answer.state == "done":
        return answer.result.value
    if not answer.has_result:
        return _InOurWords(answer.text)
    kept, text = answer.result, json.dumps(answer.result, default=str)
    if kind is None and isinstance(kept, dict):
        return kept
    if kind is not None:
        with suppress(ValueError):  # a probe or an operator recorded it
            return kind.validate_json(text, by_alias=True, by_name=True)
    return _InOurWords(f"{text}\n\n{answer.text}")
