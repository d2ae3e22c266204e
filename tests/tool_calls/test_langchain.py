"""LangChain's agents, with a scripted model: the tools and the graph are real."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, ToolRetryMiddleware
from langchain.tools.tool_node import ToolCallRequest
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import BaseTool, ToolException, tool
from langgraph.types import Command
from pydantic import BaseModel

from twicesafe import AsyncReceiver, Policy, Receiver, State
from twicesafe.errors import ConfigurationError
from twicesafe.integrations.langchain import Done, IdempotentTools, ToolRule

RULE = ToolRule(identity=("order_id",), prose=("note",))
ORDER = {"order_id": "o-1", "cents": 500}


class Scripted(GenericFakeChatModel):
    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self


class Bank:
    def __init__(self) -> None:
        self.charged: list[str] = []
        self.trouble: Exception | None = None

    def tool(self) -> BaseTool:
        @tool
        def charge(order_id: str, cents: int, note: str = "") -> str:
            """Charge an order."""
            if isinstance(self.trouble, ToolException):
                raise self.trouble
            self.charged.append(order_id)
            if self.trouble is not None:
                raise self.trouble
            return f"charged {cents}"

        charge.handle_tool_error = True
        return charge


def agent(bank: Bank, calls: list[dict[str, Any]], *layers: AgentMiddleware[Any, Any, Any]) -> Any:
    """An agent whose model makes these calls, one after the other, and then says "done"."""
    said = [
        AIMessage("", tool_calls=[{"name": "charge", "args": args, "id": f"call-{n}"}])
        for n, args in enumerate(calls)
    ]
    model = Scripted(messages=iter([*said, AIMessage("done")]))
    return create_agent(model, tools=[bank.tool()], middleware=list(layers))


def ran(bank: Bank, layer: Any, *calls: dict[str, Any], thread: str | None = None) -> list[Any]:
    config = {"configurable": {"thread_id": thread}} if thread else {}
    given = {"messages": [{"role": "user", "content": "charge it"}]}
    state = agent(bank, list(calls), layer).invoke(given, config)
    return [one for one in state["messages"] if isinstance(one, ToolMessage)]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver.open("memory://", policy=Policy(wait=0)) as opened:
        yield opened


@pytest.fixture
async def async_receiver() -> AsyncIterator[AsyncReceiver]:
    async with AsyncReceiver.open("memory://", policy=Policy(wait=0)) as opened:
        yield opened


def test_a_model_that_calls_again_gets_the_first_answer(receiver: Receiver) -> None:
    bank = Bank()
    layer = IdempotentTools(receiver, {"charge": RULE})
    reworded = {**ORDER, "cents": 500.0, "note": "in other words"}
    first, again = ran(bank, layer, ORDER, reworded)
    assert (first.content, first.status) == ("charged 500", "success")
    assert again.content.startswith("charged 500\n\ncharge was already done at ")
    assert (again.status, again.tool_call_id) == ("success", "call-1")
    assert again.response_metadata["dev.twicesafe/replayed"] is True
    assert bank.charged == ["o-1"]


def test_a_restarted_agent_gets_the_first_answer(receiver: Receiver) -> None:
    bank = Bank()
    layer = IdempotentTools(receiver, {"charge": RULE})
    for thread in ("t-1", "t-1", "t-2", None):
        ran(bank, layer, ORDER, thread=thread)
    assert len(bank.charged) == 3


def test_the_model_learns_which_arguments_differ(receiver: Receiver) -> None:
    bank = Bank()
    layer = IdempotentTools(receiver, {"charge": RULE})
    _, other = ran(bank, layer, ORDER, {**ORDER, "cents": 900})
    assert "(different: cents)" in other.content
    assert other.status == "error"


def test_a_time_out_is_not_retried_by_other_middleware(receiver: Receiver) -> None:
    """By default `ToolRetryMiddleware` executes three times, then tells the model to try again."""
    bank = Bank()
    bank.trouble = TimeoutError("no answer from the bank")
    layer = IdempotentTools(receiver, {"charge": RULE})
    retrying = ToolRetryMiddleware(max_retries=2, initial_delay=0, jitter=False)
    given = {"messages": [{"role": "user", "content": "charge it"}]}
    state = agent(bank, [ORDER, ORDER], retrying, layer).invoke(given)
    answers = [one.content for one in state["messages"] if isinstance(one, ToolMessage)]
    assert bank.charged == ["o-1"]
    assert all("it may have happened. Do not call it again" in one for one in answers)


def test_the_probe_answers_for_the_tool(receiver: Receiver) -> None:
    bank = Bank()
    bank.trouble = TimeoutError()
    rule = ToolRule(identity=("order_id",), probe=lambda call: Done("charged 500, says the bank"))
    (answer,) = ran(bank, IdempotentTools(receiver, {"charge": rule}), ORDER)
    assert answer.content.startswith("charged 500, says the bank\n\n")


def test_a_tool_exception_means_that_nothing_was_done(receiver: Receiver) -> None:
    bank = Bank()
    layer = IdempotentTools(receiver, {"charge": RULE})
    bank.trouble = ToolException("500 is more than the limit")
    (refused,) = ran(bank, layer, ORDER)
    assert refused.content == "500 is more than the limit"
    bank.trouble = None
    (corrected,) = ran(bank, layer, {**ORDER, "cents": 400})
    assert corrected.content == "charged 400"


def test_arguments_that_do_not_fit_can_be_corrected(receiver: Receiver) -> None:
    bank = Bank()
    layer = IdempotentTools(receiver, {"charge": RULE})
    wrong, right = ran(bank, layer, {**ORDER, "cents": "a lot"}, ORDER)
    assert (wrong.status, right.content, bank.charged) == ("error", "charged 500", ["o-1"])


def test_a_principal_is_part_of_the_key(receiver: Receiver) -> None:
    bank = Bank()
    for who in ("ann", "ben", "ann"):
        layer = IdempotentTools(receiver, {"charge": RULE}, principal=lambda _, who=who: who)
        ran(bank, layer, ORDER)
    assert len(bank.charged) == 2


async def test_async_agents_use_an_async_receiver(
    receiver: Receiver, async_receiver: AsyncReceiver
) -> None:
    bank = Bank()
    given = {"messages": [{"role": "user", "content": "charge it"}]}
    layer = IdempotentTools(async_receiver, {"charge": RULE})
    state = await agent(bank, [ORDER, ORDER], layer).ainvoke(given)
    assert state["messages"][-2].response_metadata["dev.twicesafe/replayed"] is True
    assert bank.charged == ["o-1"]
    with pytest.raises(ConfigurationError, match="needs an AsyncReceiver"):
        await agent(bank, [ORDER], IdempotentTools(receiver, {"charge": RULE})).ainvoke(given)
    with pytest.raises(ConfigurationError, match="needs a Receiver"):
        agent(bank, [ORDER], layer).invoke(given)
    assert bank.charged == ["o-1"]


def test_other_forms_of_results(receiver: Receiver) -> None:
    layer = IdempotentTools(receiver, {"charge": RULE})
    results: list[Any] = [
        ToolMessage([{"type": "text", "text": "a block"}], tool_call_id="x", artifact={"n": 1}),
        Command(update={}),
    ]
    for n, result in enumerate(results):
        request = asked({"name": "charge", "args": {"order_id": f"o-{n}"}, "id": "c"})
        for _ in range(2):
            answer = layer.wrap_tool_call(request, lambda _, result=result: result)
        assert isinstance(answer, ToolMessage)
        assert answer.status == "success"
        if n == 0:
            assert answer.content[0] == {"type": "text", "text": "a block"}
            assert answer.artifact == {"n": 1}
        else:
            assert "its result was not kept" in answer.content


@pytest.mark.parametrize("artifact", [object(), "x" * 300_000], ids=["unstorable", "too long"])
def test_an_artifact_that_cannot_be_kept_does_not_take_the_content_with_it(
    receiver: Receiver, caplog: pytest.LogCaptureFixture, artifact: Any
) -> None:
    layer = IdempotentTools(receiver, {"charge": RULE})
    request = asked({"name": "charge", "args": {"order_id": "o-1"}, "id": "c"})
    found = ToolMessage("2 rows", tool_call_id="c", name="charge", artifact=artifact)
    assert layer.wrap_tool_call(request, lambda _: found) is found
    again = layer.wrap_tool_call(request, lambda _: found)
    assert isinstance(again, ToolMessage)
    assert str(again.content).startswith("2 rows\n\ncharge was already done at ")
    assert again.artifact is None
    assert "a repeat of charge gets no artifact: it " in caplog.text


def asked(tool_call: Any) -> ToolCallRequest:
    runtime: Any = SimpleNamespace(config={})
    return ToolCallRequest(tool_call, Bank().tool(), {}, runtime)


def test_a_tool_waits_until_a_person_says_yes(receiver: Receiver) -> None:
    bank = Bank()
    layer = IdempotentTools(receiver, {"charge": ToolRule(identity=("order_id",), approval=True)})
    (waiting,) = ran(bank, layer, ORDER)
    assert (waiting.status, bank.charged) == ("error", [])
    assert "a person must approve it first" in waiting.content
    (asked,) = receiver.records(state=State.SUSPENDED)
    assert asked.key is not None
    assert receiver.signal(asked.key, "approval", by="ana", why="talked to them")
    (done,) = ran(bank, layer, ORDER)
    assert (done.content, bank.charged) == ("charged 500", ["o-1"])


class Order(BaseModel):
    id: int


def test_identity_in_a_nested_model_is_compared_as_its_schema_says(receiver: Receiver) -> None:
    """The schema of a nested model is outside the properties. ``"7"`` was another order than ``7``."""
    charged: list[int] = []

    @tool
    def charge(order: Order) -> str:
        """Charge an order."""
        charged.append(order.id)
        return "charged"

    layer = IdempotentTools(receiver, {"charge": ToolRule(identity=("order.id",))})
    calls = [{"order": {"id": given}} for given in (7, "7", 7.0)]
    made = [
        AIMessage("", tool_calls=[{"name": "charge", "args": given, "id": f"call-{number}"}])
        for number, given in enumerate(calls)
    ]
    model = Scripted(messages=iter([*made, AIMessage("done")]))
    graph: Any = create_agent(model, tools=[charge], middleware=[layer])
    graph.invoke({"messages": [{"role": "user", "content": "charge it"}]})
    assert charged == [7]
