"""The proxy without its layer: the same server and the same upstream, and no keys.

    python -m benchmarks.bare_proxy http://127.0.0.1:9000 127.0.0.1:8081

What the layer costs is the difference between this and ``twicesafe proxy`` with one worker.
"""

from __future__ import annotations

import asyncio
import signal
import sys

from twicesafe._core.http.forwarding import Forwarding
from twicesafe._edges.listener import ListenAddress
from twicesafe._proxy.server import server
from twicesafe._proxy.upstream import Upstream
from twicesafe.http import HttpPolicy


async def serve(upstream: str, listen: str) -> None:
    """Until SIGTERM."""
    with ListenAddress.of(listen, "listen").bind() as listening:
        made = server(Upstream(upstream, Forwarding(HttpPolicy())))

        def stop() -> None:
            made.should_exit = True

        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop)
        await made.serve([listening])


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:3]))
