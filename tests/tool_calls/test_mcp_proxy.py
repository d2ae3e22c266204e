"""MCP behind the proxy: a FastMCP server, its client, and between them the proxy's own worker."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import uvicorn
from fastmcp import Client, Context, FastMCP
from fastmcp.client.transports import StreamableHttpTransport
from fastmcp.exceptions import ToolError
from fastmcp.tools import ToolResult

from tests.servers import free_port
from twicesafe import AsyncReceiver, State
from twicesafe._core.tool_calls.answers import ToolAnswer
from twicesafe._core.tool_calls.json_rpc import (
    EventSplitter,
    UnreadableError,
    answer_message,
    how_it_ended,
    read_call,
    response_in,
)
from twicesafe._proxy import ProxySettings, load
from twicesafe._proxy.connections import UpstreamLost
from twicesafe._proxy.mcp_settings import McpSettings
from twicesafe._proxy.mcp_tools import McpTools
from twicesafe._proxy.worker import Worker
from twicesafe.errors import ConfigurationError
from twicesafe.http import HttpPolicy
from twicesafe.signing import KeySigner

RULE = {"identity": ["order_id"], "prose": ["note"]}


class Shop:
    """An MCP server with a tool that counts its effects, and ends as a test says."""

    def __init__(self) -> None:
        self.server = FastMCP("shop")
        self.charged: list[str] = []
        self.trouble: Exception | None = None
        self.returns: Any = None
        self.began, self.goes_on = asyncio.Event(), asyncio.Event()
        self.goes_on.set()

        @self.server.tool
        async def charge(order_id: str, cents: int, context: Context, note: str = "") -> Any:
            self.charged.append(order_id)
            self.began.set()
            await context.report_progress(1, 2)
            await self.goes_on.wait()
            if self.trouble is not None:
                raise self.trouble
            return self.returns or {"id": f"ch-{len(self.charged)}", "cents": cents}


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[str]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        config = uvicorn.Config(app, log_level="error", ws="none", lifespan="on")
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve([listening]))
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving


class Stand:
    """The server, the proxy, and the receiver that the proxy uses."""

    def __init__(self, shop: Shop, receiver: AsyncReceiver, url: str, worker: Worker) -> None:
        self.shop, self.receiver, self.url, self.worker = shop, receiver, url, worker

    async def charge(self, meta: Any = None, headers: Any = None, **changes: Any) -> Any:
        """One call, by a client that has just connected."""
        transport = StreamableHttpTransport(self.url, headers=headers)
        async with Client(transport, progress_handler=self._progress) as client:
            given = {"order_id": "o-1", "cents": 500, **changes}
            return await client.call_tool("charge", given, meta=meta, raise_on_error=False)

    async def _progress(self, progress: float, total: float | None, message: str | None) -> None:
        self.progress = (progress, total)

    async def states(self) -> list[State]:
        return [record.state async for record in self.receiver.records()]


@asynccontextmanager
async def stand(
    json_response: bool = False, run: str = "meta", http: Any = None, **settings: Any
) -> AsyncIterator[Stand]:
    shop = Shop()
    app = shop.server.http_app(json_response=json_response)
    async with served(app) as url, AsyncReceiver.open("memory://") as receiver:
        made = ProxySettings(
            upstream=url,
            store="memory://",
            sweep=0,
            http={"wait": 0, **(http or {})},
            mcp={"run": run, "tools": {"charge": {**RULE, **settings}}},
        )
        worker = Worker(made, receiver)
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            serving = asyncio.create_task(worker.server.serve([listening]))
            try:
                here = f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
                yield Stand(shop, receiver, here, worker)
            finally:
                worker.server.should_exit = worker.server.force_exit = True
                await serving
                worker.upstream.close()


def state(result: Any) -> str:
    found: str = (result.meta or {}).get("dev.twicesafe/state", "done")
    return found


@pytest.mark.parametrize("json_response", [False, True])
async def test_a_repeat_gets_the_recorded_result(json_response: bool) -> None:
    async with stand(json_response) as at:
        first = await at.charge(note="Thanks!")
        assert (first.structured_content, state(first)) == ({"id": "ch-1", "cents": 500}, "done")
        if not json_response:
            assert at.progress == (1, 2)
        again = await at.charge(note="Thank you", cents=500.0)
        assert (again.structured_content, again.is_error) == (first.structured_content, False)
        assert (again.content[0], state(again)) == (first.content[0], "replayed")
        assert "Do not call it again" in again.content[-1].text
        other = await at.charge(cents=900)
        assert (other.is_error, state(other)) == (True, "mismatch")
        assert "(different: cents)" in other.content[0].text
        assert at.shop.charged == ["o-1"]


async def test_whose_key_it_is() -> None:
    async with stand() as at:
        for headers in ({"Authorization": "Bearer ann"}, {"Authorization": "Bearer ben"}, None):
            await at.charge(headers=headers)
            assert state(await at.charge(headers=headers)) == "replayed"
        for run in ("r-1", "r-2", "r-1"):
            await at.charge({"dev.twicesafe/run": run})
        for key in ("k-1", "k-2", "k-1"):
            await at.charge({"dev.twicesafe/key": key})
        assert len(at.shop.charged) == 3 + 2 + 2
        wrong = await at.charge({"dev.twicesafe/key": 7})
        assert (state(wrong), "must be text" in wrong.content[0].text) == ("not_done", True)


async def test_a_session_may_be_part_of_the_key() -> None:
    """Of clients that have one: newer versions of the protocol have no sessions."""
    sent: list[str] = []

    async def upstream(scope: Any, receive: Any, send: Any) -> None:
        sent.append(dict(scope["headers"])[b"mcp-session-id"].decode())
        body = b'{"jsonrpc": "2.0", "id": 7, "result": {"content": []}}'
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    made = McpSettings(run="session", tools={"charge": RULE})
    async with AsyncReceiver.open("memory://") as receiver:
        tools = McpTools(upstream, upstream, receiver, made, HttpPolicy())
        transport = httpx.ASGITransport(tools)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            for session in ("s-1", "s-1", "s-2"):
                await client.post("/mcp", content=request(), headers={"Mcp-Session-Id": session})
    assert sent == ["s-1", "s-2"]


async def test_a_call_without_its_identity_is_refused() -> None:
    async with stand(identity=["order_id", "line.sku"]) as at:
        refused = await at.charge()
        assert (state(refused), at.shop.charged) == ("not_done", [])
        assert "has no argument 'line.sku'" in refused.content[0].text
    async with stand(identity=[], prose=[]) as at:
        keyless = await at.charge()
        assert (state(keyless), "needs a key" in keyless.content[0].text) == ("not_done", True)


async def test_an_error_leaves_the_outcome_unknown() -> None:
    """From outside, a time-out in a tool looks like any other of its errors."""
    async with stand() as at:
        at.shop.trouble = TimeoutError("no answer from the bank")
        assert state(await at.charge()) == "unknown"
        at.shop.trouble = None
        assert state(await at.charge()) == "unknown"
        assert (at.shop.charged, await at.states()) == (["o-1"], [State.HELD])


async def test_the_server_may_say_that_nothing_was_done() -> None:
    meta = {"dev.twicesafe/state": "not_done"}
    async with stand() as at:
        at.shop.returns = ToolResult(content="over the limit", meta=meta, is_error=True)
        first = await at.charge(cents=1_000_000)
        assert (first.content[0].text, first.is_error) == ("over the limit", True)
        at.shop.returns = None
        assert state(await at.charge(cents=1)) == "done"
    async with stand(errors="not_done") as at:
        at.shop.trouble = ToolError("over the limit")
        assert (await at.charge(cents=1_000_000)).content[0].text == "over the limit"
        at.shop.trouble = None
        assert state(await at.charge(cents=1)) == "done"


async def test_with_retry_the_model_gets_the_servers_error() -> None:
    async with stand(takeover="retry") as at:
        at.shop.trouble = ToolError("try again")
        assert (await at.charge()).content[0].text == "try again"
        at.shop.trouble = None
        assert state(await at.charge()) == "done"
        assert len(at.shop.charged) == 2


async def test_a_person_approves() -> None:
    async with stand(approval=True) as at:
        assert state(await at.charge()) == "waiting"
        (asked,) = [record async for record in at.receiver.records(state=State.SUSPENDED)]
        assert asked.key is not None
        assert await at.receiver.signal(asked.key, "approval", by="ana", why="fine")
        assert state(await at.charge()) == "done"
        assert at.shop.charged == ["o-1"]


async def test_a_client_that_leaves_does_not_stop_the_call() -> None:
    async with stand() as at:
        at.shop.goes_on.clear()
        leaving = asyncio.create_task(at.charge())
        await at.shop.began.wait()
        leaving.cancel()
        await asyncio.wait({leaving})
        assert await at.states() == [State.IN_PROGRESS]
        at.shop.goes_on.set()
        async with asyncio.timeout(60):
            while await at.states() != [State.COMPLETED]:  # noqa: ASYNC110 - another task records it
                await asyncio.sleep(0.01)
        assert state(await at.charge()) == "replayed"
        assert at.shop.charged == ["o-1"]


async def test_nothing_was_sent_to_a_server_that_is_gone() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    tools = {"charge": RULE}
    async with AsyncReceiver.open("memory://") as receiver:
        worker = Worker(ProxySettings(upstream=url, sweep=0, mcp={"tools": tools}), receiver)
        transport = httpx.ASGITransport(worker.front, client=("127.0.0.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            for _ in range(2):
                reply = await client.post("/mcp", content=request())
                assert reply.status_code == 503
            batch = await client.post("/MCP/", content=b"[" + request() + b"]")
            assert (batch.status_code, batch.json()["error"]["code"]) == (400, -32600)
        assert [record async for record in receiver.records()] == []


PROGRESS = (
    b'id: 1\r\nevent: message\r\ndata: {"jsonrpc":"2.0","method":"notifications/progress"}\r\n\r\n'
)
RESULT = b'id: 2\r\ndata: {"jsonrpc":"2.0","id":7,\r\ndata: "result":{"content":[],"n":1}}\r\n\r\n'
PLAIN = b'{"jsonrpc":"2.0","id":7,"result":{"content":[],"n":1}}'


@pytest.mark.parametrize("kind, body", [
    ("text/event-stream", PROGRESS + RESULT),
    ("application/json", PLAIN),
])  # fmt: skip
async def test_a_server_whose_answer_is_cut_at_any_byte(kind: str, body: bytes) -> None:
    """Only an answer that is complete is recorded. Else the outcome is unknown, and no repeat is sent."""
    sent = 0
    cut = 0

    async def upstream(scope: Any, receive: Any, send: Any) -> None:
        nonlocal sent
        sent += 1
        await receive()
        fields = [(b"content-type", kind.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": fields})
        for at in range(cut):
            await send({"type": "http.response.body", "body": body[at : at + 1], "more_body": True})
        if cut < len(body):
            raise UpstreamLost("cut")
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    settings = McpSettings(tools={"charge": RULE})
    for cut in range(len(body) + 1):
        sent = 0
        async with AsyncReceiver.open("memory://") as receiver:
            tools = McpTools(upstream, upstream, receiver, settings, HttpPolicy(wait=0))
            transport = httpx.ASGITransport(tools, client=("127.0.0.1", 1))
            async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
                first = await client.post("/mcp", content=request())
                again = await client.post("/mcp", content=request())
            (state,) = [record.state async for record in receiver.records()]
        assert (sent, first.status_code, again.status_code) == (1, 200, 200)
        if cut == len(body):
            assert state is State.COMPLETED
            assert b'"n":1' in first.content
            assert b'"n":1' in again.content
        else:
            assert state is State.HELD
            assert b"unknown" in first.content
            assert b"unknown" in again.content


# --- reading ---------------------------------------------------------------------------------


def request(**changes: Any) -> bytes:
    params = {"name": "charge", "arguments": {"order_id": "o-1", "cents": 500}}
    message = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params, **changes}
    return json.dumps(message).encode()


def test_a_call_is_read() -> None:
    call = read_call(request())
    assert call is not None
    assert (call.id, call.tool, call.meta) == (7, "charge", {})
    assert call.arguments == {"order_id": "o-1", "cents": 500}
    given = {"name": "t", "arguments": {"a": "10", "b": ["007", "-3", "1.5"], "c": 2.0}}
    call = read_call(request(params=given))
    assert call is not None
    assert call.arguments == {"a": 10, "b": ["007", -3, "1.5"], "c": 2.0}
    for other in (request(method="tools/list"), b'[{"method": "ping"}]', b'{"result": {}}'):
        assert read_call(other) is None


@pytest.mark.parametrize(
    "body",
    [
        b"not json",
        b"7",
        b'[{"method": "ping"}, {"method": "tools/call"}]',
        request(Method="ping"),
        request(id=None),
        request(id=True),
        request(params={"Name": "charge"}),
        request(params={"name": "charge", "arguments": [1]}),
        request().replace(b'"cents": 500', b'"cents": 1, "cents": 500'),
        request().replace(b'"method"', b'"method": "ping", "method"'),
        request().replace(b"500", b"NaN"),
        request().replace(b"500", b"9" * 5000),
    ],
)
def test_what_parsers_read_differently_is_refused(body: bytes) -> None:
    with pytest.raises(UnreadableError):
        read_call(body)


@pytest.mark.parametrize(
    "status, response, ended",
    [
        (200, {"result": {"content": []}}, "done"),
        (200, {"result": {"content": [], "isError": True}}, "failed"),
        (200, {"result": {"_meta": {"dev.twicesafe/state": "not_done"}}}, "not_done"),
        (
            200,
            {"result": {"isError": True, "_meta": {"dev.twicesafe/state": "waiting"}}},
            "not_done",
        ),
        (200, {"result": {"resultType": "input_required"}}, "not_done"),
        (200, {"result": {"resultType": "task", "taskId": "t-1"}}, "done"),
        (200, {"result": 7}, "unknown"),
        (200, {"error": {"code": -32602}}, "not_done"),
        (200, {"error": {"code": -32603}}, "unknown"),
        (200, None, "unknown"),
        (202, None, "unknown"),
        (404, None, "not_done"),
        (500, {"error": {"code": -32602}}, "unknown"),
    ],
)
def test_how_a_call_ended(status: int, response: Any, ended: str) -> None:
    assert how_it_ended(status, response) == ended


def test_events_are_split_wherever_they_are_cut() -> None:
    answer = b'event: message\r\ndata: {"id": 7,\r\ndata: "result": {}}\r\n\r\n'
    stream = b": hello\n\n" + answer + b"data: {}\n\n"
    for cut in range(len(stream)):
        splitter = EventSplitter()
        events = [*splitter.feed(stream[:cut]), *splitter.feed(stream[cut:])]
        assert b"".join(events) == stream
        assert [response_in(event, 7) for event in events] == [None, {"id": 7, "result": {}}, None]


def test_what_an_operator_recorded_is_a_result() -> None:
    for value, text in (("ch-1", "ch-1"), ({"id": "ch-1"}, '{"id":"ch-1"}')):
        answer = ToolAnswer(state="replayed", tool="charge", result=value)
        result = json.loads(answer_message(7, answer))["result"]
        assert (result["content"][0]["text"], result["isError"]) == (text, False)
        assert result.get("structuredContent") == (value if isinstance(value, dict) else None)


def test_a_repeat_gets_the_same_background_task() -> None:
    task = {"resultType": "task", "taskId": "t-1", "status": "working"}
    answer = ToolAnswer(state="replayed", tool="charge", result=task)
    assert json.loads(answer_message(7, answer)) == {"jsonrpc": "2.0", "id": 7, "result": task}


def test_without_its_result_the_model_gets_an_error_that_says_done() -> None:
    """A client refuses a result without the structured content that the tool declares."""
    answer = ToolAnswer(state="replayed", tool="charge", is_kept=False)
    result = json.loads(answer_message(7, answer))["result"]
    assert result["isError"]
    assert "charge was already done" in result["content"][0]["text"]


# --- settings --------------------------------------------------------------------------------


def test_settings_come_from_the_file(tmp_path: Any) -> None:
    file = tmp_path / "twicesafe.toml"
    tool = '[mcp.tools.charge]\nidentity = ["order_id"]\nretention = "1h"\n'
    file.write_text(f'[proxy]\nupstream = "http://127.0.0.1:9"\n{tool}')
    (found,) = load(file, environ={}).mcp_tools().each_tool().values()
    assert (found.identity, found.retention) == (("order_id",), 3600)
    for wrong, words in (
        (tool.replace("identity", "identiy"), "did you mean 'identity'"),
        (tool.replace('["order_id"]', '"order_id"'), "identity='order_id' is not valid"),
        (tool.replace("1h", "soon"), "retention"),
        ("[mcp]\ntools = 7\n", "a table for each tool"),
        ('[mcp]\npath = "mcp"\n', "it begins with /"),
    ):
        file.write_text(f'[proxy]\nupstream = "http://127.0.0.1:9"\n{wrong}')
        with pytest.raises(ConfigurationError, match=words):
            load(file, environ={})


async def test_a_key_in_meta_must_be_signed_if_the_proxy_requires_signatures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    secret = b"s" * 32
    signer = KeySigner("agent", secret, audience="shop")
    monkeypatch.setenv("SIGNERS", "agent:hs3:" + base64.b64encode(secret).decode())
    async with stand(http={"signatures": "env:SIGNERS?audience=shop"}) as here:
        bare = {"dev.twicesafe/key": "k-1"}
        unsigned = await here.charge(meta=bare)
        assert unsigned.is_error
        assert "dev.twicesafe/key-signature" in str(unsigned.content[-1].text)
        assert here.shop.charged == []
        assert await here.states() == []
        signed = {**bare, "dev.twicesafe/key-signature": signer.sign("k-1")}
        assert not (await here.charge(meta=signed)).is_error
        assert (await here.charge(meta=signed)).meta["dev.twicesafe/replayed"] is True
        assert here.shop.charged == ["o-1"]
