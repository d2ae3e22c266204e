"""An MCP server behind `twicesafe proxy`: its tool charges an order once, though the model asks again."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import uvicorn
from fastmcp import Client, FastMCP

charged: list[str] = []
server = FastMCP("shop")  # in real life a server in any language, in its own process


@server.tool
def charge(order_id: str, cents: int, note: str = "") -> str:
    charged.append(order_id)
    return f"charged {cents}"


async def ask(url: str) -> None:
    async with Client(f"{url}/mcp") as model:
        for note in ("Thanks!", "Thank you very much"):  # a model never says it twice alike
            given = {"order_id": "o-1", "cents": 500, "note": note}
            answer = await model.call_tool("charge", given)
            print(answer.data or answer.structured_content, answer.meta)


listening = socket.create_server(("127.0.0.1", 0))
service = uvicorn.Server(uvicorn.Config(server.http_app(), log_level="error", ws="none"))
threading.Thread(target=service.run, args=([listening],), daemon=True).start()

Path("twicesafe.toml").write_text(f"""
[proxy]
upstream = "http://127.0.0.1:{listening.getsockname()[1]}"
listen = "127.0.0.1:0"
[store]
url = "sqlite:///keys.db"
[mcp.tools.charge]
identity = ["order_id"]
prose = ["note"]
""")
command = [sys.executable, "-m", "twicesafe", "proxy", "--config", "twicesafe.toml", "--json"]
with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as proxy:
    assert proxy.stdout is not None
    told = ""
    while not told.rstrip().endswith("}"):
        told += proxy.stdout.readline()
    asyncio.run(ask(json.loads(told)["listening"]))
    proxy.terminate()
service.should_exit = True
print("charged:", charged)
assert charged == ["o-1"]
