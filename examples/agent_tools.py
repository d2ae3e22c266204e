"""An MCP server whose tool charges an order once, though the model asks again, and the bank times out."""

import asyncio

from fastmcp import Client, FastMCP

from twicesafe import AsyncReceiver
from twicesafe.integrations.mcp import Done, IdempotentTools, NotDone, ToolCall, ToolRule

bank: dict[str, str] = {}  # what the bank knows
sent: list[str] = []
receiver = AsyncReceiver.open(
    "memory://"
)  # in real life one that all servers share: postgresql://…


async def find_charge(call: ToolCall) -> Done | NotDone:
    """Asked before any retry: did it happen?"""
    charge_id = bank.get(call.arguments["order_id"])
    return NotDone() if charge_id is None else Done(charge_id)


rule = ToolRule(identity=("order_id",), prose=("note",), probe=find_charge)
server = FastMCP("shop")
server.add_middleware(IdempotentTools(receiver, {"charge": rule}))


@server.tool
async def charge(order_id: str, cents: int, note: str = "") -> str:
    sent.append(order_id)
    bank[order_id] = f"ch-{len(sent)}"
    if order_id == "o-2":
        raise TimeoutError("the bank's answer was lost")
    return bank[order_id]


async def main() -> None:
    async with receiver, Client(server) as model:
        for order in ("o-1", "o-2"):
            for note in ("Thanks!", "Thank you very much"):  # a model never says it twice alike
                given = {"order_id": order, "cents": 500, "note": note}
                answer = await model.call_tool("charge", given)
                print(f"{order}:", answer.data)


asyncio.run(main())
print("sent to the bank:", sent)
assert sent == ["o-1", "o-2"]
