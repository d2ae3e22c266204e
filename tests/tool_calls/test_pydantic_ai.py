"""Pydantic AI, with its own model for tests: agent, toolset and messages are real."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NotRequired

import pytest
from pydantic import BaseModel, Field
from pydantic_ai import Agent, ModelRetry, RunContext, ToolReturn
from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelResponse,
    RetryPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.toolsets import DynamicToolset, FunctionToolset
from typing_extensions import TypedDict

from twicesafe import AsyncReceiver, Policy, State
from twicesafe.errors import ConfigurationError
from twicesafe.integrations.pydantic_ai import Done, IdempotentTools, ToolRule

RULE = ToolRule(identity=("order_id",), prose=("note",))
ORDER = {"order_id": "o-1", "cents": 500}


class Charge(BaseModel):
    id: str
    cents: int


class Bank:
    def __init__(self) -> None:
        self.charged: list[str] = []
        self.trouble: Exception | None = None
        self.returns: Any = None

    async def charge(self, order_id: str, cents: int, note: str = "") -> Any:
        """Charge an order."""
        if isinstance(self.trouble, (ModelRetry, ToolFailed)):
            raise self.trouble
        self.charged.append(order_id)
        if self.trouble is not None:
            raise self.trouble
        return self.returns or Charge(id=f"ch-{len(self.charged)}", cents=cents)


@pytest.fixture
async def receiver() -> AsyncIterator[AsyncReceiver]:
    async with AsyncReceiver.open("memory://", policy=Policy(wait=0)) as opened:
        yield opened


async def ran(
    tools: IdempotentTools, *calls: dict[str, Any], seen: list[Any] | None = None, **settings: Any
) -> list[Any]:
    """What the model gets back, for a model that makes these calls one after the other.

    ``seen`` gets the images.
    """
    left = list(calls)

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if left:
            return ModelResponse([ToolCallPart("charge", left.pop(0))])
        return ModelResponse([TextPart("done")])

    agent = Agent(FunctionModel(model), toolsets=[tools])
    result = await agent.run("charge it", **settings)
    parts = [part for message in result.all_messages() for part in message.parts]
    for part in parts if seen is not None else ():
        content: Any = getattr(part, "content", None)
        found = content if isinstance(content, list) else [content]
        seen += [one for one in found if isinstance(one, BinaryContent)]  # type: ignore[operator]
    return [part for part in parts if isinstance(part, (ToolReturnPart, RetryPromptPart))]


def guarded(bank: Bank, receiver: AsyncReceiver, rule: ToolRule = RULE, **settings: Any) -> Any:
    return IdempotentTools(FunctionToolset([bank.charge]), receiver, {"charge": rule}, **settings)


async def test_a_model_that_calls_again_gets_the_first_answer(receiver: AsyncReceiver) -> None:
    bank = Bank()
    first, again = await ran(
        guarded(bank, receiver), ORDER, {**ORDER, "note": "in other words", "cents": 500.0}
    )
    assert first.model_response_str() == again.model_response_str() == '{"id":"ch-1","cents":500}'
    assert again.metadata["dev.twicesafe/replayed"] is True
    assert bank.charged == ["o-1"]


class Line(BaseModel):
    name: str
    price: Decimal


async def test_a_model_inside_the_arguments_is_compared_like_them(receiver: AsyncReceiver) -> None:
    charged = []

    def charge(line: Line, note: str = "") -> None:
        charged.append(line)

    rule = ToolRule(identity=("line",))
    tools = IdempotentTools(FunctionToolset([charge]), receiver, {"charge": rule})
    lines = [("caf\u00e9", 1.5), ("cafe\u0301", "1.50"), ("cafe", 1.5), ("caf\u00e9", 1.51)]
    await ran(tools, *({"line": {"name": name, "price": price}} for name, price in lines))
    assert [str(line.price) for line in charged] == ["1.5", "1.5", "1.51"]


class Order(BaseModel):
    order_id: str = Field(alias="orderId")
    cents: int = 500
    note: str = ""


@dataclass
class OrderRow:
    orderId: str  # noqa: N815 - as in the model
    cents: int = 500
    note: str = ""


class OrderDict(TypedDict):
    orderId: str
    cents: NotRequired[int]
    note: NotRequired[str]


@pytest.mark.parametrize("kind", [Order, OrderRow, OrderDict])
async def test_a_model_that_is_the_only_argument_is_the_arguments(
    receiver: AsyncReceiver, kind: Any
) -> None:
    """Each call was refused: no name in the rule was right both for the schema and for the arguments."""
    charged = []

    def charge(order: Any) -> None:
        charged.append(order)

    charge.__annotations__["order"] = kind
    rule = ToolRule(identity=("orderId",), prose=("note",))
    tools = IdempotentTools(FunctionToolset([charge]), receiver, {"charge": rule})
    given = {"orderId": "o-1", "cents": 500}
    calls = [given, {**given, "note": "again"}, {**given, "cents": 900}, {"orderId": "o-2"}]
    *_, other, _ = await ran(tools, *calls)
    assert "(different: cents)" in other.content
    assert len(charged) == 2


async def test_the_model_reads_that_it_need_not_call_again(receiver: AsyncReceiver) -> None:
    seen: list[str] = []
    bank = Bank()
    calls = [ORDER, ORDER]

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        parts = messages[-1].parts
        seen.extend(str(part.content) for part in parts if isinstance(part, UserPromptPart))
        return ModelResponse([ToolCallPart("charge", calls.pop())] if calls else [TextPart("ok")])

    await Agent(FunctionModel(model), toolsets=[guarded(bank, receiver)]).run("charge it")
    assert "Do not call it again for this." in seen[-1]


async def test_a_restarted_run_gets_the_first_answer(receiver: AsyncReceiver) -> None:
    bank = Bank()
    for _ in range(2):
        await ran(guarded(bank, receiver), ORDER)
    assert bank.charged == ["o-1"]


async def test_principal_and_run_are_part_of_the_key(receiver: AsyncReceiver) -> None:
    def conversation(context: RunContext[Any]) -> str | None:
        return context.conversation_id

    bank = Bank()
    for who, case in (("ann", "c-1"), ("ann", "c-2"), ("ben", "c-1"), ("ann", "c-1")):
        tools = guarded(bank, receiver, principal=lambda _, who=who: who, run=conversation)
        await ran(tools, ORDER, conversation_id=case)
    assert len(bank.charged) == 3


async def test_a_time_out_is_not_retried(receiver: AsyncReceiver) -> None:
    bank = Bank()
    bank.trouble = TimeoutError()
    answers = await ran(guarded(bank, receiver), ORDER, ORDER)
    assert bank.charged == ["o-1"]
    for answer in answers:
        assert answer.outcome == "failed"
        assert "it may have happened. Do not call it again" in answer.content


async def test_the_probe_answers_for_the_tool(receiver: AsyncReceiver) -> None:
    bank = Bank()
    bank.trouble = TimeoutError()
    rule = ToolRule(identity=("order_id",), probe=lambda call: Done({"id": "ch-1"}))
    (answer,) = await ran(guarded(bank, receiver, rule), ORDER)
    assert answer.content == {"id": "ch-1"}


@pytest.mark.parametrize("kind", [ModelRetry, ToolFailed])
async def test_the_frameworks_own_errors_mean_that_nothing_was_done(
    receiver: AsyncReceiver, kind: type[Exception]
) -> None:
    bank = Bank()
    bank.trouble = kind("500 is more than the limit")
    (refused,) = await ran(guarded(bank, receiver), ORDER)
    assert "500 is more than the limit" in str(refused.content)
    bank.trouble = None
    (corrected,) = await ran(guarded(bank, receiver), {**ORDER, "cents": 400})
    assert corrected.model_response_str() == '{"id":"ch-1","cents":400}'


async def test_the_model_learns_which_arguments_differ(receiver: AsyncReceiver) -> None:
    _, other = await ran(guarded(Bank(), receiver), ORDER, {**ORDER, "cents": 900})
    assert "(different: cents)" in other.content


async def test_results_with_more_content(receiver: AsyncReceiver) -> None:
    bank = Bank()
    bank.returns = ToolReturn(return_value=Charge(id="x", cents=1), content="see also")
    first, again = await ran(guarded(bank, receiver), ORDER, ORDER)
    assert first.model_response_str() == again.model_response_str()
    bank.returns = ToolReturn(return_value="x" * 300_000, content="see also")
    other = {"order_id": "o-2", "cents": 1}
    _, unkept = await ran(guarded(bank, receiver), other, other)
    assert "its result was not kept" in unkept.content


@pytest.mark.parametrize("where", ["value", "list", "content"])
async def test_an_image_is_replayed_as_an_image(receiver: AsyncReceiver, where: str) -> None:
    """The model got the octets of the image as base64 text."""
    image = BinaryContent(b"\xff\xd8", media_type="image/png")
    bank = Bank()
    match where:
        case "value":
            bank.returns = image
        case "list":
            bank.returns = ["the receipt", image]
        case _:
            bank.returns = ToolReturn("paid", content=["the receipt", image])
    seen: list[Any] = []
    await ran(guarded(bank, receiver), ORDER, ORDER, seen=seen)
    assert bank.charged == ["o-1"]
    assert [one.data for one in seen] == [b"\xff\xd8"] * 2


async def test_tools_without_a_rule_are_not_touched(receiver: AsyncReceiver) -> None:
    bank = Bank()
    await ran(IdempotentTools(FunctionToolset([bank.charge]), receiver, {}), ORDER, ORDER)
    assert len(bank.charged) == 2
    with pytest.raises(ConfigurationError, match="needs an AsyncReceiver"):
        IdempotentTools(FunctionToolset([bank.charge]), "memory://", {})  # type: ignore[arg-type]


async def test_a_tool_waits_until_a_person_says_yes(receiver: AsyncReceiver) -> None:
    bank = Bank()
    tools = guarded(bank, receiver, ToolRule(identity=("order_id",), approval=True))
    (waiting,) = await ran(tools, ORDER)
    assert "a person must approve it first" in waiting.content
    (asked,) = [record async for record in receiver.records(state=State.SUSPENDED)]
    assert asked.key is not None
    assert await receiver.signal(asked.key, "approval", "too much", by="ana", why="limit")
    (refused,) = await ran(tools, ORDER)
    assert "a person refused it (too much)" in refused.content
    assert bank.charged == []


async def test_the_log_names_a_rule_without_a_tool_once(
    receiver: AsyncReceiver, caplog: pytest.LogCaptureFixture
) -> None:
    """Also if the toolset is made anew for each run: the copies share one guard."""
    bank = Bank()
    toolset = DynamicToolset[Any](lambda ctx: FunctionToolset([bank.charge]))
    tools = IdempotentTools(toolset, receiver, {"charge": RULE, "chrage": RULE})
    for _ in range(2):
        await ran(tools, ORDER)
    assert bank.charged == ["o-1"]
    [told] = [one.message for one in caplog.records if "protects nothing" in one.message]
    assert "'chrage'; there are charge" in told
