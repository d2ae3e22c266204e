"""Errors that a framework makes after a tool has had its effect: they look like "nothing was done"."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import agents
import pytest
from agents import ModelBehaviorError, function_tool
from fastmcp import Client, Context, FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.server import create_proxy
from fastmcp.tools import ToolResult
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import BaseTool, ToolException, tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command
from pydantic import BaseModel
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.toolsets import FunctionToolset

from tests.tool_calls import test_openai_agents, test_pydantic_ai
from twicesafe import AsyncReceiver, Policy, Receiver, State
from twicesafe.integrations import langchain, mcp, openai_agents, pydantic_ai
from twicesafe.integrations.langchain import ToolRule

RULE = ToolRule(identity=("order_id",))
ORDER = {"order_id": "o-1", "cents": 500}
UNKNOWN = "it may have happened. Do not call it again"


class Receipt(BaseModel):
    """What the bank answers, if its answer is right."""

    id: int


@pytest.fixture
async def receiver() -> AsyncIterator[AsyncReceiver]:
    async with AsyncReceiver.open("memory://", policy=Policy(wait=0)) as opened:
        yield opened


# -- FastMCP ----------------------------------------------------------------------------------


async def charged(server: FastMCP, **changes: Any) -> Any:
    async with Client(server) as client:
        return await client.call_tool("charge", {**ORDER, **changes}, raise_on_error=False)


def guard(server: FastMCP, receiver: AsyncReceiver, rule: ToolRule = RULE) -> FastMCP:
    server.add_middleware(mcp.IdempotentTools(receiver, {"charge": rule}))
    return server


class Backend:
    """Another server, whose tool has its effect and then says that it failed."""

    def __init__(self) -> None:
        self.server = FastMCP("backend")
        self.charged: list[str] = []

        @self.server.tool
        async def charge(order_id: str, cents: int) -> str:
            self.charged.append(order_id)
            raise TimeoutError("no answer from the bank")


def mounted(backend: FastMCP) -> FastMCP:
    server = FastMCP("front")
    server.mount(create_proxy(backend))
    return server


@pytest.mark.parametrize("front", [create_proxy, mounted])
async def test_the_error_of_a_server_behind_this_one_is_unknown(
    receiver: AsyncReceiver, front: Any
) -> None:
    backend = Backend()
    server = guard(front(backend.server), receiver)
    for _ in range(2):
        assert UNKNOWN in (await charged(server)).content[-1].text
    assert backend.charged == ["o-1"]


async def test_a_server_that_is_protected_itself_answers_for_its_tool(
    receiver: AsyncReceiver,
) -> None:
    """Its "a person must approve it first" held the key in front of it."""
    backend = FastMCP("backend")

    @backend.tool
    async def charge(order_id: str, cents: int) -> str:
        return f"charged {cents}"

    approved = ToolRule(identity=("order_id",), approval=True)
    guard(backend, receiver.options(scope=("backend",)), approved)
    server = guard(create_proxy(backend), receiver)
    assert "a person must approve it first" in (await charged(server)).content[-1].text
    (asked,) = [one async for one in receiver.records(state=State.SUSPENDED)]
    assert asked.key is not None
    await receiver.signal(asked.key, "approval")
    assert (await charged(server)).data == "charged 500"


async def test_with_retry_the_model_gets_the_other_servers_error(receiver: AsyncReceiver) -> None:
    backend = Backend()
    rule = ToolRule(identity=("order_id",), takeover="retry")
    answer = await charged(guard(create_proxy(backend.server), receiver, rule))
    assert answer.is_error
    assert "no answer from the bank" in answer.content[0].text


async def test_a_mounted_tool_may_say_that_nothing_was_done(receiver: AsyncReceiver) -> None:
    child = FastMCP("child")

    @child.tool
    async def charge(order_id: str, cents: int) -> Any:
        return ToolResult("over the limit", is_error=True) if cents > 400 else f"charged {cents}"

    server = FastMCP("front")
    server.mount(child)
    guard(server, receiver)
    assert (await charged(server)).content[0].text == "over the limit"
    assert (await charged(server, cents=400)).content[0].text == "charged 400"


@pytest.mark.parametrize("what", ["client", "resource", "tool"])
async def test_the_error_of_what_a_tool_calls_next_is_unknown(
    receiver: AsyncReceiver, what: str
) -> None:
    server = guard(FastMCP("shop"), receiver)
    effects = []

    @server.tool
    async def mail(number: int) -> None: ...

    @server.tool
    async def charge(order_id: str, cents: int, ctx: Context) -> None:
        effects.append(order_id)
        match what:
            case "client":
                async with Client(server) as client:
                    await client.call_tool("mail", {"number": "no number"})
            case "resource":
                await ctx.read_resource("receipt://missing")
            case _:
                await server.call_tool("mail", {"number": "no number"})

    for _ in range(2):
        assert UNKNOWN in (await charged(server)).content[-1].text
    assert effects == ["o-1"]


# -- Pydantic AI ------------------------------------------------------------------------------


async def test_a_time_limit_of_pydantic_ai_is_unknown(receiver: AsyncReceiver) -> None:
    effects = []

    async def charge(order_id: str, cents: int) -> None:
        effects.append(order_id)
        await asyncio.Event().wait()

    toolset: Any = FunctionToolset([charge], timeout=0.01)
    guarded = pydantic_ai.IdempotentTools(toolset, receiver, {"charge": RULE})
    for answer in await test_pydantic_ai.ran(guarded, ORDER, ORDER):
        assert UNKNOWN in answer.content
    assert effects == ["o-1"]


@pytest.mark.parametrize("behaviour", ["retry", "failed", "error"])
async def test_the_error_of_an_mcp_server_is_unknown_to_pydantic_ai(
    receiver: AsyncReceiver, behaviour: Any
) -> None:
    backend = Backend()
    toolset: Any = MCPToolset(backend.server, tool_error_behavior=behaviour)
    guarded = pydantic_ai.IdempotentTools(toolset, receiver, {"charge": RULE})
    for answer in await test_pydantic_ai.ran(guarded, ORDER, ORDER):
        assert UNKNOWN in answer.content
    assert backend.charged == ["o-1"]


# -- LangChain --------------------------------------------------------------------------------


def answers(bank_tool: BaseTool, layer: Any, **settings: Any) -> list[Any]:
    """What a graph with this tool gets for two calls."""
    node = ToolNode([bank_tool], wrap_tool_call=layer.wrap_tool_call, **settings)
    graph: Any = StateGraph(MessagesState)
    graph.add_node("tools", node)
    graph.add_node("after", lambda state: {"messages": []})
    graph.add_edge(START, "tools")
    graph.add_edge("tools", END)
    runs = graph.compile()
    asked = AIMessage("", tool_calls=[{"name": "charge", "args": ORDER, "id": "call-1"}])
    found = []
    for _ in range(2):
        messages = runs.invoke({"messages": [asked]})["messages"]
        found += [one for one in messages if isinstance(one, ToolMessage)]
    return found


@pytest.mark.parametrize("of_the_tool", [False, True])
@pytest.mark.parametrize("of_the_node", [None, True])
@pytest.mark.parametrize("mode", ["validation", "time-out", "result"])
def test_an_error_that_langchain_makes_a_message_of_is_unknown(
    of_the_tool: bool, of_the_node: bool | None, mode: str
) -> None:
    effects = []

    @tool
    def charge(order_id: str, cents: int) -> Any:
        """Charge an order."""
        effects.append(order_id)
        if mode == "time-out":
            raise TimeoutError("no answer from the bank")
        if mode == "result":
            return [Command(update={})]  # without the message that LangChain wants
        return str(Receipt.model_validate({"id": "not what we expected"}))

    charge.handle_validation_error = of_the_tool
    settings = {} if of_the_node is None else {"handle_tool_errors": of_the_node}
    with Receiver.open("memory://", policy=Policy(wait=0)) as receiver:
        layer = langchain.IdempotentTools(receiver, {"charge": RULE})
        for answer in answers(charge, layer, **settings):
            assert UNKNOWN in answer.content
    assert effects == ["o-1"]


@pytest.mark.parametrize("handled", [False, True])
def test_the_error_of_an_mcp_server_is_unknown_to_langchain(handled: bool) -> None:
    """The adapters of LangChain for MCP raise `ToolException` for each error of a server."""
    effects: list[str] = []
    adapters: dict[str, Any] = {"__name__": "langchain_mcp_adapters.tools", "E": ToolException}
    exec("def raise_it(): raise E('the server says: time-out')", adapters)

    @tool
    def charge(order_id: str, cents: int) -> None:
        """Charge an order."""
        effects.append(order_id)
        adapters["raise_it"]()

    charge.handle_tool_error = handled
    with Receiver.open("memory://", policy=Policy(wait=0)) as receiver:
        layer = langchain.IdempotentTools(receiver, {"charge": RULE})
        for answer in answers(charge, layer):
            assert UNKNOWN in answer.content
    assert effects == ["o-1"]


def test_with_retry_the_model_gets_the_message_of_langchain() -> None:
    @tool
    def charge(order_id: str, cents: int) -> str:
        """Charge an order."""
        return str(Receipt.model_validate({"id": "not what we expected"}))

    rule = ToolRule(identity=("order_id",), takeover="retry")
    with Receiver.open("memory://", policy=Policy(wait=0)) as receiver:
        first, _ = answers(charge, langchain.IdempotentTools(receiver, {"charge": rule}))
    assert first.status == "error"
    assert "Error invoking tool 'charge'" in first.content


def test_a_graph_inside_a_tool_may_send_its_parent_elsewhere() -> None:
    effects = []

    def hand_over(state: MessagesState) -> Command[Any]:
        effects.append("charged")
        return Command(goto="after", graph=Command.PARENT)

    inner: Any = StateGraph(MessagesState)
    inner.add_node("hand_over", hand_over)
    inner.add_edge(START, "hand_over")
    bank = inner.compile()

    @tool
    def charge(order_id: str, cents: int) -> str:
        """Charge an order."""
        return str(bank.invoke({"messages": []}))

    with Receiver.open("memory://", policy=Policy(wait=0)) as receiver:
        layer = langchain.IdempotentTools(receiver, {"charge": RULE})
        assert "its result was not kept" in answers(charge, layer)[-1].content
    assert effects == ["charged"]


# -- OpenAI Agents SDK ------------------------------------------------------------------------


async def test_what_the_model_of_an_inner_agent_does_wrong_is_unknown(
    receiver: AsyncReceiver,
) -> None:
    effects = []

    @function_tool
    async def charge(order_id: str, cents: int) -> None:
        effects.append(order_id)
        raise ModelBehaviorError("Tool refund not found in agent bank")

    tools = openai_agents.idempotent_tools(receiver, {"charge": RULE}, [charge])
    for answer in await test_openai_agents.ran(tools, ORDER, ORDER):
        assert UNKNOWN in answer
    assert effects == ["o-1"]


async def test_arguments_that_the_sdk_logs_can_be_corrected(
    receiver: AsyncReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents._debug, "DONT_LOG_TOOL_DATA", False)
    bank = test_openai_agents.Bank()
    tools = test_openai_agents.guarded(bank, receiver)
    wrong = {**ORDER, "cents": "a lot"}
    *_, last = await test_openai_agents.ran(tools, json.dumps(wrong), ORDER)
    assert (last, bank.charged) == ("charged 500", ["o-1"])


async def test_an_author_may_still_say_so(receiver: AsyncReceiver) -> None:
    server = guard(FastMCP("shop"), receiver)

    @server.tool
    async def charge(order_id: str, cents: int) -> str:
        if cents > 400:
            raise ToolError("over the limit")
        return f"charged {cents}"

    assert (await charged(server)).content[-1].text == "over the limit"
    assert (await charged(server, cents=400)).data == "charged 400"
