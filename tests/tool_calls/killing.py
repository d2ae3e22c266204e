"""Agents that are killed and started again, on the real SDKs, until each of them has charged its order once.

    python -m tests.tool_calls.killing --runs 1000            # prints one line of JSON

A run is one order and a scripted model. The model rewords its arguments, forgets answers, calls twice at
once, and asks again whatever the answer was. The tool times out before its effect or after it, takes effect
late, refuses, and kills its process; a timer kills the process at other moments. The next process starts
all runs of the batch from the beginning, as an agent without a memory would. The effect is a line in a
file, and the probe reads that file.

Each process is forked from one that has imported the SDKs, so a thousand runs take minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from twicesafe import AsyncReceiver, Policy
from twicesafe._core.tool_calls.rule import Done, NotDone, ToolCall, ToolRule

SETTLES: Final = 0.3
LATE: Final = 0.02
LEASE: Final = 0.3
MOST_PROCESSES: Final = 200
UNFINISHED: Final = 3

Invoke = Callable[[dict[str, Any]], Awaitable[str]]


class Ledger:
    """The bank: one line per charge. A line is written by one system call, so it is there or not."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.touch()

    def add(self, order: str) -> None:
        handle = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(handle, f"{order}\n".encode())
        finally:
            os.close(handle)

    def counts(self) -> Counter[str]:
        return Counter(self._path.read_text().split())

    def find(self, call: ToolCall) -> Done | NotDone:
        order = call.arguments["order_id"]
        return Done(f"charged {order}") if self.counts()[order] else NotDone("not in the ledger")


class Bank:
    """The tool of all agents of one process."""

    def __init__(self, ledger: Ledger, chance: random.Random) -> None:
        self._ledger, self._chance = ledger, chance

    async def charge(self, order_id: str, cents: int, note: str = "") -> str:
        """Charge an order."""
        match self._chance.choice(FATES):
            case "time out before":
                raise TimeoutError("no answer from the bank")
            case "refuse":
                raise NotDone("the bank is closed for a moment")
            case "die before":
                die()
            case "late":
                asyncio.get_running_loop().call_later(LATE, self._ledger.add, order_id)
                raise ConnectionResetError("the bank hung up")
            case "time out after":
                self._ledger.add(order_id)
                raise TimeoutError("no answer from the bank")
            case "die after":
                self._ledger.add(order_id)
                die()
        await asyncio.sleep(self._chance.random() * 0.01)
        self._ledger.add(order_id)
        await asyncio.sleep(self._chance.random() * 0.01)
        return f"charged {order_id}"


FATES: Final = (
    *["fine"] * 5, "time out before", "time out after", "late", "refuse", "die before", "die after",
)  # fmt: skip


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


# -- the model --------------------------------------------------------------------------------


async def model(invoke: Invoke, order: str, chance: random.Random) -> bool:
    """Ask until the order is charged; then, perhaps, ask again. Whether it came to an end."""
    for _ in range(200):
        given = {
            "order_id": order,
            "cents": chance.choice((500, 500.0)),
            "note": chance.choice(("", "thank you", "Thanks a lot!", "as the user asked")),
        }
        calls = [invoke(given) for _ in range(chance.choice((1, 1, 1, 2)))]
        answers = await asyncio.gather(*calls)
        if any(f"charged {order}" in answer for answer in answers) and chance.random() < 0.7:
            return True
        await asyncio.sleep(0.02)
    return False


# -- the frameworks ---------------------------------------------------------------------------


def mcp(receiver: AsyncReceiver, rule: ToolRule, bank: Bank) -> Invoke:
    from fastmcp import Client, FastMCP

    from twicesafe.integrations.mcp import IdempotentTools

    server = FastMCP("bank")
    server.tool(bank.charge)
    server.add_middleware(IdempotentTools(receiver, {"charge": rule}))

    async def invoke(given: dict[str, Any]) -> str:
        async with Client(server) as client:
            result = await client.call_tool("charge", given, raise_on_error=False)
            return " ".join(str(getattr(block, "text", "")) for block in result.content)

    return invoke


def langchain(receiver: AsyncReceiver, rule: ToolRule, bank: Bank) -> Invoke:
    from langchain.agents import create_agent
    from langchain_core.messages import AIMessage
    from langchain_core.tools import tool

    from twicesafe.integrations.langchain import IdempotentTools

    from .test_langchain import Scripted

    layer = IdempotentTools(receiver, {"charge": rule})
    charge = tool(bank.charge)

    async def invoke(given: dict[str, Any]) -> str:
        call = AIMessage("", tool_calls=[{"name": "charge", "args": given, "id": "c"}])
        script = Scripted(messages=iter([call, AIMessage("done")]))
        agent: Any = create_agent(script, tools=[charge], middleware=[layer])
        state = await agent.ainvoke({"messages": [{"role": "user", "content": "charge"}]})
        return str(state["messages"][-2].content)

    return invoke


def pydantic_ai(receiver: AsyncReceiver, rule: ToolRule, bank: Bank) -> Invoke:
    from pydantic_ai.toolsets import FunctionToolset

    from twicesafe.integrations.pydantic_ai import IdempotentTools

    from .test_pydantic_ai import ran

    tools = IdempotentTools(FunctionToolset([bank.charge]), receiver, {"charge": rule})

    async def invoke(given: dict[str, Any]) -> str:
        (answer,) = await ran(tools, given)
        return str(answer.content)

    return invoke


def openai_agents(receiver: AsyncReceiver, rule: ToolRule, bank: Bank) -> Invoke:
    from agents import function_tool

    from twicesafe.integrations.openai_agents import idempotent_tools

    from .test_openai_agents import ran

    tools = idempotent_tools(receiver, {"charge": rule}, [function_tool(bank.charge)])

    async def invoke(given: dict[str, Any]) -> str:
        (answer,) = await ran(tools, given)
        return str(answer)

    return invoke


FRAMEWORKS: Final = {one.__name__: one for one in (mcp, langchain, pydantic_ai, openai_agents)}


# -- processes --------------------------------------------------------------------------------


async def process(
    url: str, framework: str, orders: list[str], ledger: Ledger, seed: str, takeover: Any
) -> bool:
    """One life of a batch of agents."""
    chance = random.Random(seed)
    rule = ToolRule(
        identity=("order_id",),
        prose=("note",),
        takeover=takeover,
        probe=ledger.find,
        settles_within=SETTLES,
    )
    async with AsyncReceiver.open(url, policy=Policy(lease=LEASE, wait=0.05)) as receiver:
        invoke = FRAMEWORKS[framework](receiver, rule, Bank(ledger, chance))
        if chance.random() < 0.5:
            threading.Timer(chance.random() * 0.3, die).start()
        models = [model(invoke, order, random.Random(f"{seed}/{order}")) for order in orders]
        return all(await asyncio.gather(*models))


def lives(
    url: str, framework: str, orders: list[str], ledger: Ledger, seed: str, takeover: str
) -> Counter[str]:
    """Start processes until one of them comes to an end; how they ended."""
    ends: Counter[str] = Counter()
    for number in range(MOST_PROCESSES):
        pid = os.fork()
        if pid == 0:
            try:
                life = process(url, framework, orders, ledger, f"{seed}/{number}", takeover)
                os._exit(0 if asyncio.run(life) else UNFINISHED)
            except BaseException as error:
                print(f"{framework}: {error!r}", file=sys.stderr, flush=True)
                os._exit(1)
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status):
            ends["killed"] += 1
            continue
        ends[
            {0: "ended", UNFINISHED: "unfinished"}.get(os.waitstatus_to_exitcode(status), "failed")
        ] += 1
        break
    return ends


def main(arguments: list[str] | None = None) -> int:
    given = argparse.ArgumentParser()
    given.add_argument("--runs", type=int, default=40)
    given.add_argument("--batch", type=int, default=10)
    given.add_argument("--seed", default="1")
    given.add_argument("--takeover", default="hold", help="retry: to see that doubles are found")
    options = given.parse_args(arguments)
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for framework in FRAMEWORKS:
            ledger = Ledger(Path(folder) / framework)
            url = f"sqlite:///{folder}/{framework}.db"
            share = options.runs // len(FRAMEWORKS)
            for start in range(0, share, options.batch):
                orders = [
                    f"{framework}-{n}" for n in range(start, min(share, start + options.batch))
                ]
                seed = f"{options.seed}/{orders[0]}"
                found += lives(url, framework, orders, ledger, seed, options.takeover)
            counts = ledger.counts()
            orders = [f"{framework}-{n}" for n in range(share)]
            found["runs"] += share
            found["charged once"] += sum(counts[order] == 1 for order in orders)
            found["doubled"] += sum(counts[order] > 1 for order in orders)
            found["missing"] += sum(counts[order] == 0 for order in orders)
    print(json.dumps(found))
    return 0 if found["charged once"] == found["runs"] else 1


if __name__ == "__main__":
    import importlib

    for name in ("mcp", "langchain", "pydantic_ai", "openai_agents"):
        importlib.import_module(f"tests.tool_calls.test_{name}")
    import logging

    logging.disable(logging.CRITICAL)
    raise SystemExit(main())
