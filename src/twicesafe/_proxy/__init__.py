"""The proxy: at most one effect per Idempotency-Key, in front of a service in any language.

    twicesafe proxy --upstream http://127.0.0.1:9000 --store sqlite:///keys.db

    settings     settings from the command line, the environment and the file
    supervisor   the socket, the workers, reload and stop; health and metrics (admin)
    worker       one process, built from the parts below
    server       the server, with a guard before its parser
    front        the ASGI application that the server calls
    mcp_tools    tool calls of an MCP server, by their `mcp_settings`
    upstream     one exchange with the service, never repeated, on one of its `connections`
    addresses    the address of the service; `log_lines`: the log

Between front and upstream runs the middleware of `twicesafe.asgi`; `_core.http` makes every decision.
It needs uvicorn: ``pip install "twicesafe[proxy]"``.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from .._values.drivers import require
from ..errors import ConfigurationError
from .settings import ProxySettings, check_store, load

if TYPE_CHECKING:
    from .supervisor import Greeting

__all__ = ["ProxySettings", "check_store", "load", "run"]


def run(read: Callable[[], ProxySettings], ready: Callable[[Greeting], object]) -> None:
    """Serve until a signal ends it. Each reload calls ``read`` again."""
    if os.name != "posix":
        raise ConfigurationError("the proxy runs on Linux and macOS only")
    require("uvicorn", "h11")
    from .supervisor import Supervisor

    async def supervise() -> None:
        await Supervisor(read, ready).run()

    asyncio.run(supervise())
