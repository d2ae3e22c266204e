"""FastMCP, with its own client in the same process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvicorn
from fastmcp import Client, FastMCP, FastMCPApp
from fastmcp.exceptions import ToolError
from fastmcp.server.auth import AccessToken
from fastmcp.server.auth.providers.jwt import StaticTokenVerifier
from fastmcp.server.extensions import ServerExtension
from fastmcp.server.middleware import Middleware
from fastmcp.server.middleware.error_handling import RetryMiddleware
from fastmcp.server.providers.addressing import hash_tool
from fastmcp.tools import ToolResult
from fastmcp.utilities.tasks import TASKS_EXTENSION_ID
from mcp import MCPError
from mcp.client.extension import advertise
from pydantic import BaseModel, Field

from twicesafe import AsyncReceiver, Policy, State
from twicesafe.errors import ConfigurationError
from twicesafe.integrations.mcp import (
    Done,
    IdempotentTools,
    NotDone,
    ToolCall,
    ToolRule,
    token_principal,
)
from twicesafe.signing import KeySigner, KeyVerifier

RULE = ToolRule(identity=("order_id",), prose=("note",))


class Receipt(BaseModel):
    number: int
    text: str = ""


class Shop:
    """A server with one tool that counts its effects, and fails as a test says."""

    def __init__(self, receiver: AsyncReceiver, rule: ToolRule = RULE, **settings: Any) -> None:
        self.server = FastMCP("shop")
        self.server.add_middleware(IdempotentTools(receiver, {"charge": rule}, **settings))
        self.charged: list[str] = []
        self.trouble: Exception | None = None
        self.began = asyncio.Event()
        self.hangs = False

        @self.server.tool
        async def charge(order_id: str, cents: int, note: str = "") -> dict[str, Any]:
            """Charge an order."""
            if isinstance(self.trouble, ToolError):
                raise self.trouble
            self.charged.append(order_id)
            self.began.set()
            if self.hangs:
                await asyncio.Event().wait()
            if self.trouble is not None:
                raise self.trouble
            return {"id": f"ch-{len(self.charged)}", "cents": cents}

        @self.server.tool
        async def look_up(order_id: str) -> str:
            """Look up an order."""
            self.charged.append("looked")
            return order_id


@pytest.fixture
async def receiver() -> AsyncIterator[AsyncReceiver]:
    async with AsyncReceiver.open("memory://", policy=Policy(wait=0)) as opened:
        yield opened


async def charged(shop: Shop, meta: dict[str, Any] | None = None, **changes: Any) -> Any:
    """One call, by a client that has just connected."""
    async with Client(shop.server) as client:
        given = {"order_id": "o-1", "cents": 500, **changes}
        return await client.call_tool("charge", given, meta=meta, raise_on_error=False)


def said(result: Any) -> str:
    return str(result.content[-1].text)


async def test_a_repeat_gets_the_recorded_result(receiver: AsyncReceiver) -> None:
    shop = Shop(receiver)
    first = await charged(shop, note="thank you")
    assert (first.data, first.is_error) == ({"id": "ch-1", "cents": 500}, False)
    again = await charged(shop, note="many thanks", cents=500.0)
    assert (again.structured_content, again.is_error) == ({"id": "ch-1", "cents": 500}, False)
    assert again.content[0] == first.content[0]
    assert again.meta["dev.twicesafe/replayed"] is True
    assert "Do not call it again" in said(again)
    assert shop.charged == ["o-1"]


async def test_a_key_in_meta_decides(receiver: AsyncReceiver) -> None:
    shop = Shop(receiver, ToolRule())
    keyless = await charged(shop)
    assert keyless.is_error
    assert "needs a key" in said(keyless)
    states = []
    for key in ("k-1", "k-2", "k-1"):
        result = await charged(shop, {"dev.twicesafe/key": key})
        states.append((result.meta or {}).get("dev.twicesafe/state", "done"))
    assert states == ["done", "done", "replayed"]
    wrong = await charged(shop, {"dev.twicesafe/key": 7})
    assert wrong.is_error
    assert "must be text" in said(wrong)


async def test_a_run_in_meta_is_part_of_the_key(receiver: AsyncReceiver) -> None:
    shop = Shop(receiver)
    for run in ("r-1", "r-2", "r-1"):
        await charged(shop, {"dev.twicesafe/run": run})
    assert len(shop.charged) == 2


async def test_principals_do_not_share_keys(receiver: AsyncReceiver) -> None:
    who = ["ann"]
    shop = Shop(receiver, principal=lambda: who[0])
    await charged(shop)
    who[0] = "ben"
    await charged(shop)
    assert len(shop.charged) == 2


async def test_the_model_learns_which_arguments_differ(receiver: AsyncReceiver) -> None:
    shop = Shop(receiver)
    await charged(shop)
    other = await charged(shop, cents=900)
    assert other.is_error
    assert "(different: cents)" in said(other)
    assert other.meta["dev.twicesafe/fields"] == ["cents"]


async def test_a_time_out_is_not_retried(receiver: AsyncReceiver) -> None:
    """FastMCP itself would tell the model: "Upstream request timed out, please retry"."""
    shop = Shop(receiver)
    shop.trouble = TimeoutError("no answer from the bank")
    first = await charged(shop)
    assert first.is_error
    assert "it may have happened. Do not call it again" in said(first)
    assert first.meta["dev.twicesafe/state"] == "unknown"
    shop.trouble = None
    assert (await charged(shop)).meta["dev.twicesafe/state"] == "unknown"
    assert shop.charged == ["o-1"]


async def test_the_probe_answers_for_the_tool(receiver: AsyncReceiver) -> None:
    async def find(call: ToolCall) -> Done:
        return Done({"id": "ch-1", "cents": call.arguments["cents"]})

    shop = Shop(receiver, ToolRule(identity=("order_id",), probe=find))
    shop.trouble = TimeoutError("no answer from the bank")
    result = await charged(shop)
    assert (result.data, result.is_error) == ({"id": "ch-1", "cents": 500}, False)
    assert shop.charged == ["o-1"]


async def test_a_tool_error_means_that_nothing_was_done(receiver: AsyncReceiver) -> None:
    shop = Shop(receiver)
    shop.trouble = ToolError("500 is more than the limit")
    refused = await charged(shop)
    assert refused.is_error
    assert said(refused) == "500 is more than the limit"
    shop.trouble = None
    assert (await charged(shop, cents=400)).data == {"id": "ch-1", "cents": 400}


class DeclinedError(Exception):
    """The bank says no, before any effect."""


@pytest.mark.parametrize("error", [NotDone("declined"), DeclinedError("declined")])
async def test_what_fastmcp_wraps_is_still_the_tools_own_statement(
    receiver: AsyncReceiver, error: Exception
) -> None:
    shop = Shop(receiver, ToolRule(identity=("order_id",), not_done=(DeclinedError,)))
    shop.trouble = error
    assert "declined" in said(await charged(shop))
    shop.trouble = None
    assert (await charged(shop, cents=400)).data["cents"] == 400


async def test_an_error_that_the_policy_remembers_is_final(receiver: AsyncReceiver) -> None:
    """FastMCP wraps it, and the key was held."""
    remembering = receiver.options(policy=Policy(wait=0, remember=(DeclinedError,)))
    shop = Shop(remembering)
    shop.trouble = DeclinedError("declined")
    first, again = await charged(shop), await charged(shop)
    assert "Error calling tool 'charge': declined" in said(first)
    assert said(again) == "charge failed permanently: declined. Do not call it again for this."
    assert shop.charged == ["o-1"]


async def test_an_error_that_the_tool_made_of_a_remembered_one_is_unknown(
    receiver: AsyncReceiver,
) -> None:
    """It was recorded as the declined card that led to it, whatever the tool had done since."""
    shop = Shop(receiver.options(policy=Policy(wait=0, remember=(DeclinedError,))))
    shop.trouble = TimeoutError("the second card did not answer")
    shop.trouble.__cause__ = DeclinedError("the first card was declined")
    for _ in range(2):
        assert (await charged(shop)).meta["dev.twicesafe/state"] == "unknown"
    assert shop.charged == ["o-1"]


async def test_arguments_that_do_not_fit_can_be_corrected(receiver: AsyncReceiver) -> None:
    shop = Shop(receiver)
    refused = await charged(shop, cents="a lot")
    assert refused.is_error
    assert "cents" in said(refused)
    assert (await charged(shop)).data == {"id": "ch-1", "cents": 500}


async def test_a_client_that_leaves_holds_the_key(receiver: AsyncReceiver) -> None:
    shop = Shop(receiver)
    shop.hangs = True
    call = asyncio.create_task(charged(shop))
    await shop.began.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    async with asyncio.timeout(60):
        while (await receiver.stats()).by_state.get(State.HELD, 0) == 0:  # noqa: ASYNC110
            await asyncio.sleep(0)
    shop.hangs = False
    assert (await charged(shop)).meta["dev.twicesafe/state"] == "unknown"
    assert shop.charged == ["o-1"]


async def test_tools_without_a_rule_are_not_touched(receiver: AsyncReceiver) -> None:
    shop = Shop(receiver)
    async with Client(shop.server) as client:
        for _ in range(2):
            assert (await client.call_tool("look_up", {"order_id": "o-1"})).data == "o-1"
        hints = {tool.name: tool.annotations for tool in await client.list_tools()}
        with pytest.raises(ToolError, match="Unknown tool"):
            await client.call_tool("nothing", {})
    assert shop.charged == ["looked", "looked"]
    assert hints["charge"] is not None
    assert hints["charge"].idempotent_hint is True
    assert hints["look_up"] is None or hints["look_up"].idempotent_hint is None


async def test_plain_values_and_unstorable_results(receiver: AsyncReceiver) -> None:
    server = FastMCP("shop")
    rules = {name: ToolRule(identity=("order_id",)) for name in ("ship", "both", "late")}
    server.add_middleware(
        IdempotentTools(receiver.options(policy=Policy(max_result_bytes=400, wait=0)), rules)
    )
    ran: list[str] = []

    @server.tool
    async def ship(order_id: str) -> str:
        ran.append(order_id)
        return "label 7"

    @server.tool
    async def both(order_id: str) -> ToolResult:
        return ToolResult(content="x" * 500, meta={"own": 1})

    @server.tool
    async def late(order_id: str) -> str:
        raise ConnectionError("gone")

    async with Client(server) as client:
        for _ in range(2):
            assert (await client.call_tool("ship", {"order_id": "o"})).data == "label 7"
        assert ran == ["o"]
        first = await client.call_tool("both", {"order_id": "o"})
        assert first.meta is not None
        assert first.meta["own"] == 1
        again = await client.call_tool("both", {"order_id": "o"})
        assert "its result was not kept" in said(again)
        await client.call_tool("late", {"order_id": "o"}, raise_on_error=False)
        held = [one async for one in receiver.records(state=State.HELD)]
        assert held[0].key is not None
        await receiver.resolve(held[0].key, "label 8", by="ann")
        assert (await client.call_tool("late", {"order_id": "o"})).data == "label 8"


class Task(BaseModel):
    """What fastmcp-tasks answers. Its type is not known here when it is replayed."""

    task_id: str = Field(serialization_alias="taskId")
    result_type: str = Field("task", serialization_alias="resultType")


class Tasks(ServerExtension):
    """Makes a background task of every call, as fastmcp-tasks does."""

    identifier = "com.example/tasks"
    made = 0

    async def intercept_tool_call(self, params: Any, context: Any, call_next: Any) -> Any:
        self.made += 1
        return Task(task_id=f"t-{self.made}")


class Sent(Middleware):
    """What the middleware of twicesafe returned; a client without fastmcp-tasks cannot read a task."""

    def __init__(self) -> None:
        self.results: list[Any] = []

    async def on_call_tool(self, context: Any, call_next: Any) -> Any:
        self.results.append(await call_next(context))
        return ToolResult(content="sent", is_error=True)


async def test_a_repeat_gets_the_same_background_task(receiver: AsyncReceiver) -> None:
    shop = Shop(receiver)
    tasks, sent = Tasks(), Sent()
    shop.server.add_extension(tasks)
    shop.server.middleware.insert(0, sent)
    async with Client(shop.server, extensions=[advertise(TASKS_EXTENSION_ID)]) as client:
        for note in ("", "again"):
            given = {"order_id": "o-1", "cents": 5, "note": note}
            await client.call_tool("charge", given, raise_on_error=False)
    await charged(shop, cents=5)  # a client that cannot ask for the result of a task
    *both, last = sent.results
    assert [one.model_dump(by_alias=True, exclude_none=True) for one in both] == [
        {"taskId": "t-1", "resultType": "task"}
    ] * 2
    assert "was already done; its result was not kept" in said(last)
    assert (tasks.made, shop.charged) == (1, [])


async def test_the_name_that_apps_use_is_protected_too(receiver: AsyncReceiver) -> None:
    """A tool that waits for approval ran without it, under the name with the hash."""
    shop, charged = FastMCPApp("shop"), []

    @shop.tool(model=True)
    def charge(order_id: str) -> str:
        charged.append(order_id)
        return "charged"

    server = FastMCP("server", providers=[shop])
    rule = ToolRule(identity=("order_id",))
    server.add_middleware(IdempotentTools(receiver, {"charge": rule}))
    async with Client(server) as client:
        for name in ("charge", f"{hash_tool('shop', 'charge')}_charge", "charge"):
            answer = await client.call_tool(name, {"order_id": "o-1"})
    assert charged == ["o-1"]
    assert "charge was already done" in said(answer)


@pytest.mark.parametrize(
    "found, text",
    [
        ("refunded by hand", "refunded by hand"),
        ({"number": "seven"}, '{"number":"seven"}'),
        (None, "charge was already done at"),
        (b"x" * 300_000, "its result was not kept"),
    ],
)
async def test_what_does_not_fit_the_output_schema_still_reaches_the_model(
    receiver: AsyncReceiver, found: Any, text: str
) -> None:
    """The client raised an error of its own, and the model did not learn that it was done."""
    server = FastMCP("shop")
    rule = ToolRule(identity=("order_id",), probe=lambda call: Done(found))
    server.add_middleware(IdempotentTools(receiver, {"charge": rule}))

    @server.tool
    async def charge(order_id: str, cents: int) -> Receipt:
        if isinstance(found, bytes):
            return Receipt(number=7, text=found.decode())
        raise TimeoutError

    async with Client(server) as client:
        for _ in range(2):
            given = {"order_id": "o-1", "cents": 500}
            answer = await client.call_tool("charge", given, raise_on_error=False)
        assert text in said(answer) + answer.content[0].text  # type: ignore[union-attr]
        assert answer.is_error
        assert answer.meta is not None
        assert answer.meta["dev.twicesafe/state"] == "replayed"


async def test_a_rule_that_does_not_fit_stops_the_tool(receiver: AsyncReceiver) -> None:
    shop = Shop(receiver, ToolRule(identity=("order",)))
    with pytest.raises(MCPError):
        await charged(shop)
    assert shop.charged == []


async def test_it_needs_an_async_receiver() -> None:
    with pytest.raises(ConfigurationError, match="needs an AsyncReceiver"):
        IdempotentTools("memory://", {})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "claims, subject",
    [
        ({"sub": "ann"}, "ann"),
        ({}, "client-1"),
        ({"sub": 7}, "client-1"),
        ({"sub": "ann", "iss": "https://one.example"}, "https://one.example ann"),
        ({"sub": "ann", "iss": "https://two.example"}, "https://two.example ann"),
        ({"iss": "https://two.example"}, "https://two.example client-1"),
    ],
)
def test_the_principal_is_the_tokens_subject_or_client(
    monkeypatch: pytest.MonkeyPatch, claims: dict[str, Any], subject: str
) -> None:
    token = AccessToken(token="t", client_id="client-1", scopes=[], claims=claims)
    monkeypatch.setattr("twicesafe.integrations.mcp.get_access_token", lambda: token)
    assert token_principal() == subject


async def test_middleware_that_retries_gets_recorded_answers(receiver: AsyncReceiver) -> None:
    shop = Shop(receiver)
    shop.server.middleware.insert(0, RetryMiddleware(max_retries=2, base_delay=0))
    shop.trouble = TimeoutError()
    assert (await charged(shop)).meta["dev.twicesafe/state"] == "unknown"
    assert shop.charged == ["o-1"]


async def test_over_http_the_token_tells_principals_apart(receiver: AsyncReceiver) -> None:
    """A real server and new connections: only ``_meta``, the token and the arguments stay the same."""
    tokens = {
        name: {"client_id": "app", "sub": name, "scopes": [], "claims": {"sub": name}}
        for name in ("ann", "ben")
    }
    shop = Shop(receiver)
    shop.server.auth = StaticTokenVerifier(tokens=tokens)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
        config = uvicorn.Config(shop.server.http_app(), log_level="error", ws="none")
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve([listener]))
        replayed = []
        try:
            for name, run in (("ann", "r"), ("ann", "r"), ("ben", "r"), ("ann", "s")):
                async with Client(url, auth=name) as client:
                    result = await client.call_tool(
                        "charge", {"order_id": "o-1", "cents": 5}, meta={"dev.twicesafe/run": run}
                    )
                    replayed.append((result.meta or {}).get("dev.twicesafe/replayed", False))
        finally:
            server.should_exit = True
            await serving
    assert replayed == [False, True, False, False]
    assert len(shop.charged) == 3


async def test_a_tool_waits_until_a_person_says_yes(receiver: AsyncReceiver) -> None:
    shop = Shop(receiver, ToolRule(identity=("order_id",), approval=True))
    waiting = await charged(shop)
    assert (waiting.is_error, waiting.meta["dev.twicesafe/state"]) == (True, "waiting")
    assert "a person must approve it first" in said(waiting)
    (asked,) = [record async for record in receiver.records(state=State.SUSPENDED)]
    assert asked.key is not None
    assert await receiver.signal(asked.key, "approval", by="ana", why="talked to them")
    assert (await charged(shop)).data == {"id": "ch-1", "cents": 500}
    assert shop.charged == ["o-1"]


SECRET = b"s" * 32
SIGNER = KeySigner("agent", SECRET, audience="shop")


async def test_a_key_of_a_client_must_be_signed_if_the_policy_says_so() -> None:
    verifier = KeyVerifier({"agent": SECRET}, audience="shop")
    policy = Policy(wait=0, signatures=verifier)
    async with AsyncReceiver.open("memory://", policy=policy) as receiver:
        shop = Shop(receiver, ToolRule())
        bare = {"dev.twicesafe/key": "k-1"}
        unsigned = await charged(shop, bare)
        assert unsigned.is_error
        assert "dev.twicesafe/key-signature" in said(unsigned)
        forged = {**bare, "dev.twicesafe/key-signature": SIGNER.sign("k-2")}
        assert (await charged(shop, forged)).is_error
        assert shop.charged == []
        assert [record async for record in receiver.records()] == []
        signed = {**bare, "dev.twicesafe/key-signature": SIGNER.sign("k-1")}
        assert not (await charged(shop, signed)).is_error
        assert (await charged(shop, signed)).meta["dev.twicesafe/replayed"] is True
        assert shop.charged == ["o-1"]


async def test_a_key_made_from_the_identity_needs_no_signature() -> None:
    verifier = KeyVerifier({"agent": SECRET}, audience="shop")
    policy = Policy(wait=0, signatures=verifier)
    async with AsyncReceiver.open("memory://", policy=policy) as receiver:
        shop = Shop(receiver)
        assert not (await charged(shop)).is_error
        assert (await charged(shop)).meta["dev.twicesafe/replayed"] is True


async def test_the_log_names_a_rule_without_a_tool_once(
    receiver: AsyncReceiver, caplog: pytest.LogCaptureFixture
) -> None:
    """With a misspelt name the tool would not be protected, and nothing else would say so."""
    shop = Shop(receiver)
    shop.server.add_middleware(IdempotentTools(receiver, {"chrage": RULE}))
    async with Client(shop.server) as client:
        await client.list_tools()
        await client.list_tools()
    [told] = [one.message for one in caplog.records if "protects nothing" in one.message]
    assert "'chrage'; there are charge" in told
