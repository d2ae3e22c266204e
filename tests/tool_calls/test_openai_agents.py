"""The OpenAI Agents SDK, with a scripted model: runner, tools and items are real."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import date
from typing import Any

import pytest
from agents import (
    Agent,
    Model,
    ModelResponse,
    RunConfig,
    Runner,
    Usage,
    UserError,
    WebSearchTool,
    function_tool,
)
from agents.tool import ToolOutputText
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)
from pydantic import BaseModel, Field

from twicesafe import AsyncReceiver, Policy, State
from twicesafe.errors import ConfigurationError
from twicesafe.integrations.openai_agents import Done, NotDone, ToolRule, idempotent_tools

RULE = ToolRule(identity=("order_id",), prose=("note",))
ORDER = {"order_id": "o-1", "cents": 500, "note": ""}


class Scripted(Model):
    """Makes these calls, one after the other, and then says "done"."""

    def __init__(self, calls: list[str]) -> None:
        self._calls = calls

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        item: Any = ResponseOutputMessage(
            id="m",
            role="assistant",
            status="completed",
            type="message",
            content=[ResponseOutputText(annotations=[], text="done", type="output_text")],
        )
        if self._calls:
            number = len(self._calls)
            item = ResponseFunctionToolCall(
                arguments=self._calls.pop(0),
                call_id=f"call-{number}",
                name="charge",
                type="function_call",
            )
        return ModelResponse(output=[item], usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


class Bank:
    def __init__(self) -> None:
        self.charged: list[str] = []
        self.trouble: Exception | None = None
        self.returns: Any = None

    def tool(self, **settings: Any) -> Any:
        @function_tool(**settings)
        async def charge(order_id: str, cents: int, note: str = "") -> Any:
            """Charge an order."""
            if isinstance(self.trouble, NotDone):
                raise self.trouble
            self.charged.append(order_id)
            if self.trouble is not None:
                raise self.trouble
            return self.returns or f"charged {cents}"

        return charge


@pytest.fixture
async def receiver() -> AsyncIterator[AsyncReceiver]:
    async with AsyncReceiver.open("memory://", policy=Policy(wait=0)) as opened:
        yield opened


async def ran(tools: Any, *calls: Any, context: Any = None) -> list[Any]:
    """What the model gets back, as the tools say it."""
    return [item.output for item in await outputs(tools, *calls, context=context)]


async def sent_by(tools: Any, *calls: Any) -> list[Any]:
    """What the SDK sends to the model."""
    return [item.raw_item["output"] for item in await outputs(tools, *calls)]


async def outputs(tools: Any, *calls: Any, context: Any = None) -> list[Any]:
    texts = [call if isinstance(call, str) else json.dumps(call) for call in calls]
    agent = Agent(name="shop", tools=list(tools), model=Scripted(texts))
    result = await Runner.run(
        agent, "charge it", context=context, run_config=RunConfig(tracing_disabled=True)
    )
    return [item for item in result.new_items if item.type == "tool_call_output_item"]


def guarded(bank: Bank, receiver: AsyncReceiver, rule: ToolRule = RULE, **settings: Any) -> Any:
    return idempotent_tools(receiver, {"charge": rule}, [bank.tool()], **settings)


async def test_a_model_that_calls_again_gets_the_first_answer(receiver: AsyncReceiver) -> None:
    bank = Bank()
    reworded = {**ORDER, "cents": 500.0, "note": "in other words"}
    first, again = await ran(guarded(bank, receiver), ORDER, reworded)
    assert first == "charged 500"
    assert again.startswith("charged 500\n\ncharge was already done at ")
    assert bank.charged == ["o-1"]


async def test_a_restarted_run_gets_the_first_answer(receiver: AsyncReceiver) -> None:
    bank = Bank()
    for case in ("c-1", "c-1", "c-2"):
        tools = guarded(bank, receiver, run=lambda context: context.context["case"])
        await ran(tools, ORDER, context={"case": case})
    assert len(bank.charged) == 2


async def test_a_time_out_is_not_retried(receiver: AsyncReceiver) -> None:
    """By default the SDK would say: "An error occurred while running the tool. Please try again"."""
    bank = Bank()
    bank.trouble = TimeoutError()
    answers = await ran(guarded(bank, receiver), ORDER, ORDER)
    assert bank.charged == ["o-1"]
    assert all("it may have happened. Do not call it again" in one for one in answers)


async def test_the_sdks_own_time_limit_holds_the_key(receiver: AsyncReceiver) -> None:
    ended = asyncio.Event()

    @function_tool(timeout=0.05)
    async def charge(order_id: str, cents: int, note: str = "") -> str:
        """Charge an order."""
        await ended.wait()
        return "never"

    tools = idempotent_tools(receiver, {"charge": RULE}, [charge])
    _, again = await ran(tools, ORDER, ORDER)
    assert "it may have happened" in again


async def test_the_probe_answers_for_the_tool(receiver: AsyncReceiver) -> None:
    bank = Bank()
    bank.trouble = TimeoutError()
    rule = ToolRule(identity=("order_id",), probe=lambda call: Done("charged 500, says the bank"))
    (answer,) = await ran(guarded(bank, receiver, rule), ORDER)
    assert answer.startswith("charged 500, says the bank\n\n")


async def test_after_nothing_was_done_the_model_may_correct_its_arguments(
    receiver: AsyncReceiver,
) -> None:
    bank = Bank()
    bank.trouble = NotDone("500 is more than the limit")
    (refused,) = await ran(guarded(bank, receiver), ORDER)
    assert refused == "Nothing was done by charge: 500 is more than the limit."
    bank.trouble = None
    (corrected,) = await ran(guarded(bank, receiver), {**ORDER, "cents": 400})
    assert corrected == "charged 400"


async def test_other_errors_get_the_tools_own_words(receiver: AsyncReceiver) -> None:
    bank = Bank()
    bank.trouble = LookupError("no such order")
    tool = bank.tool(failure_error_function=lambda context, error: f"own words: {error}")
    rule = ToolRule(identity=("order_id",), not_done=(LookupError,))
    (own,) = await ran(idempotent_tools(receiver, {"charge": rule}, [tool]), ORDER)
    assert own == "own words: no such order"
    raising = idempotent_tools(receiver, {"charge": rule}, [bank.tool(failure_error_function=None)])
    with pytest.raises(UserError, match="no such order"):
        await ran(raising, ORDER)


async def test_arguments_that_do_not_fit_can_be_corrected(receiver: AsyncReceiver) -> None:
    bank = Bank()
    answers = await ran(guarded(bank, receiver), {**ORDER, "cents": "a lot"}, "[]", ORDER)
    assert answers[-1] == "charged 500"
    assert bank.charged == ["o-1"]


async def test_the_model_learns_which_arguments_differ(receiver: AsyncReceiver) -> None:
    _, other = await ran(guarded(Bank(), receiver), ORDER, {**ORDER, "cents": 900})
    assert "(different: cents)" in other


@pytest.mark.parametrize(
    "result",
    [ToolOutputText(text="a block"), [ToolOutputText(text="a block")]],
    ids=["one", "list"],
)
async def test_blocks_are_replayed_as_blocks(receiver: AsyncReceiver, result: Any) -> None:
    bank = Bank()
    bank.returns = result
    _, again = await ran(guarded(bank, receiver), ORDER, ORDER)
    assert again[0] == {"type": "text", "text": "a block"}
    assert "Do not call it again" in again[1]["text"]
    assert bank.charged == ["o-1"]


@pytest.mark.parametrize("result", [[1, 2], [{"type": "refund"}], {"type": "refund"}, ("a",)])
async def test_what_is_no_block_is_replayed_as_the_same_text(
    receiver: AsyncReceiver, result: Any
) -> None:
    bank = Bank()
    bank.returns = result
    _, again = await ran(guarded(bank, receiver), ORDER, ORDER)
    assert again.startswith(f"{result}\n\ncharge was already done at ")


class Receipt(BaseModel):
    order_id: str = Field(serialization_alias="orderId")
    day: date


RECEIPT = Receipt(order_id="o-1", day=date(2026, 7, 24))
SCHEMA = {
    "type": "object",
    "properties": {"cents": {"type": "integer"}},
    "required": ["cents"],
    "additionalProperties": False,
}
TYPED: list[Any] = [
    ({"output_type": Receipt}, RECEIPT),
    ({"output_json_schema": SCHEMA}, {"cents": 500}),
    ({"output_json_schema": SCHEMA}, '{"cents":500}'),
]


@pytest.mark.parametrize("settings, result", TYPED, ids=["type", "schema", "text"])
async def test_a_result_of_a_declared_type_is_replayed_as_that(
    receiver: AsyncReceiver, settings: Any, result: Any
) -> None:
    """The SDK ends the run if a tool that declares the type of its output says anything else."""
    bank = Bank()
    bank.returns = result
    tools = idempotent_tools(receiver, {"charge": RULE}, [bank.tool(**settings)])
    first, again, other = await sent_by(tools, ORDER, ORDER, {**ORDER, "cents": 900})
    assert first == again
    assert "(different: cents)" in other
    assert bank.charged == ["o-1"]


async def test_what_a_probe_finds_need_not_have_the_declared_type(receiver: AsyncReceiver) -> None:
    bank = Bank()
    bank.trouble = TimeoutError()
    rule = ToolRule(identity=("order_id",), probe=lambda call: Done("paid 500"))
    tools = idempotent_tools(receiver, {"charge": rule}, [bank.tool(output_type=Receipt)])
    (found,) = await sent_by(tools, ORDER)
    assert found.startswith('"paid 500"\n\ncharge was already done at ')


async def test_only_tools_with_a_rule_are_changed(receiver: AsyncReceiver) -> None:
    bank = Bank()
    given = [bank.tool(), WebSearchTool()]
    assert idempotent_tools(receiver, {}, given) == given
    assert idempotent_tools(receiver, {"charge": RULE}, given)[1] is given[1]
    with pytest.raises(ConfigurationError, match="no function tool of that name; there are charge"):
        idempotent_tools(receiver, {"charg": RULE}, given)
    with pytest.raises(ConfigurationError, match="is not an argument of the tool"):
        idempotent_tools(receiver, {"charge": ToolRule(identity=("order",))}, given)
    with pytest.raises(ConfigurationError, match="needs an AsyncReceiver"):
        idempotent_tools("memory://", {}, [])  # type: ignore[arg-type]


async def test_a_tool_waits_until_a_person_says_yes(receiver: AsyncReceiver) -> None:
    bank = Bank()
    tools = guarded(bank, receiver, ToolRule(identity=("order_id",), approval=True))
    (waiting,) = await ran(tools, ORDER)
    assert "a person must approve it first" in waiting
    (asked,) = [record async for record in receiver.records(state=State.SUSPENDED)]
    assert asked.key is not None
    assert await receiver.signal(asked.key, "approval", by="ana", why="talked to them")
    assert await ran(tools, ORDER) == ["charged 500"]
    assert bank.charged == ["o-1"]


@pytest.mark.parametrize("odd", ['"cents": 1e400', '"cents": NaN'])
async def test_what_the_sdk_can_read_is_protected(receiver: AsyncReceiver, odd: str) -> None:
    """Its parser takes more than JSON: arguments that ours refused ran without protection."""
    charged: list[str] = []

    @function_tool
    async def charge(order_id: str, cents: float, note: str = "") -> str:
        charged.append(order_id)
        return "charged"

    tools = idempotent_tools(receiver, {"charge": RULE}, [charge])
    text = f'{{"order_id": "o-1", {odd}}}'
    await ran(tools, text, text)
    assert len(charged) == (0 if "NaN" in odd else 1)


async def test_an_agent_inside_a_tool_resumes_after_an_approval(receiver: AsyncReceiver) -> None:
    """Its interrupted run was recorded as done, so the approved tool never ran."""
    bank = Bank()
    call = json.dumps(ORDER)
    teller = Agent(name="teller", tools=[bank.tool(needs_approval=True)], model=Scripted([call]))
    asked = json.dumps({"input": "charge o-1"})
    rule = ToolRule(identity=("input",))
    tools = idempotent_tools(receiver, {"charge": rule}, [teller.as_tool("charge", "Charge it.")])
    shop = Agent(name="shop", tools=tools, model=Scripted([asked, asked]))
    untraced = RunConfig(tracing_disabled=True)
    first = await Runner.run(shop, "charge o-1", run_config=untraced)
    (wanted,) = first.interruptions
    state = first.to_state()
    state.approve(wanted)
    second = await Runner.run(shop, state, run_config=untraced)
    outputs = [item.output for item in second.new_items if item.type == "tool_call_output_item"]
    assert outputs[0] == "done"
    assert outputs[1].startswith("done\n\ncharge was already done at ")
    assert bank.charged == ["o-1"]
