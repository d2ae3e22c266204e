"""A TCP proxy that misbehaves on purpose: what a network can do to a reply, at a chosen byte.

    with Proxy(server_port) as proxy:
        proxy.arm(Fault("reply", after=17, act="close"))   # the next reply ends after 17 bytes

A fault happens once, on whichever connection speaks first, and is then gone: a client that connects anew
gets through. Without a fault every byte passes; but with `largest` set, a request above that many bytes
ends its connection, each time it is sent.

    close        both ends get a FIN                         reset    both ends get a RST
    half-close   the client gets a FIN, its bytes still pass silence  no end is notified, nothing passes
    delay        the rest comes ``seconds`` later            throttle the rest comes byte by byte
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

__all__ = ["ACTS", "Fault", "Proxy"]

Act = Literal["close", "reset", "half-close", "silence", "delay", "throttle"]
ACTS: Final[tuple[Act, ...]] = ("close", "reset", "half-close", "silence", "delay", "throttle")

RUDELY: Final = struct.pack("ii", 1, 0)


@dataclass
class Fault:
    way: Literal["reply", "request"]
    after: int = 1 << 60
    """Bytes that pass, on all connections together, before it happens."""
    act: Act = "close"
    seconds: float = 0.2
    passed: int = 0
    happened: bool = False


class _Link:
    """One client, one server."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client, self.server = client, server
        self.silent = False
        self.ended = False
        """The client got its FIN: there are no more replies."""
        self.asked = 0
        """Bytes of the request that is not answered yet."""

    def end(self, rudely: bool = False) -> None:
        for writer in (self.client, self.server):
            if rudely:
                plug = writer.get_extra_info("socket")
                with contextlib.suppress(OSError):
                    plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RUDELY)
                writer.transport.abort()
            else:
                writer.close()


class Proxy:
    def __init__(self, behind: int) -> None:
        self.behind = behind
        """The server's port; a change is for the next connection."""
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = self._listener.getsockname()[1]
        self._fault: Fault | None = None
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._serving = threading.Event()
        self.faults = 0
        """That happened."""
        self.asked = 0
        """How often a connection turned from answering to asking: round trips, of a client that waits for each."""
        self.largest: int | None = None
        """Bytes that a request may have."""
        self.held = False
        """Bytes are taken and not passed on, in both ways, until this is False again."""

    @property
    def connections(self) -> int:
        """That are open now."""
        return len(self._links)

    def arm(self, fault: Fault) -> Fault:
        self._fault = fault
        return fault

    def disarm(self) -> None:
        self._fault = None

    def cut(self) -> None:
        """End every connection now."""
        self._call(self._cut())

    async def _cut(self) -> None:
        for link in list(self._links):
            link.end()

    def _call(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    # -- its thread ---------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._thread.start()
        self._serving.wait()  # a stop before it serves would not be heard
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        serving = self._loop.run_until_complete(
            asyncio.start_server(self._accept, sock=self._listener)
        )
        self._loop.call_soon(self._serving.set)
        self._loop.run_forever()
        serving.close()
        for link in list(self._links):
            link.end(rudely=True)
        for task in self._tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))
        self._loop.run_until_complete(asyncio.sleep(0.01))  # transports close one turn later
        self._loop.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            replies, server = await asyncio.open_connection("127.0.0.1", self.behind)
        except OSError:
            writer.transport.abort()
            return
        link = _Link(writer, server)
        self._links.add(link)
        try:
            await asyncio.gather(
                self._pump(link, "request", reader, server),
                self._pump(link, "reply", replies, writer),
            )
        except asyncio.CancelledError:  # the proxy is closed; asyncio's own callback would complain
            return
        finally:
            link.end()
            self._links.discard(link)

    async def _pump(
        self, link: _Link, way: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            while data := await reader.read(65536):
                while self.held:  # noqa: ASYNC110 - let go by another thread
                    await asyncio.sleep(0.002)
                self.asked += way == "request" and not link.asked
                link.asked = 0 if way == "reply" else link.asked + len(data)
                if self.largest is not None and link.asked > self.largest:
                    self.faults += 1
                    link.end(rudely=True)
                    return
                fault = self._fault
                if fault is not None and fault.way == way:
                    data = await self._through(link, fault, data, writer)
                if link.silent or (link.ended and way == "reply"):
                    continue
                writer.write(data)
                await writer.drain()
            if not link.silent:
                writer.write_eof() if writer.can_write_eof() else writer.close()
        except OSError:  # one of them is gone, without a word: the other end is notified
            link.end(rudely=True)

    async def _through(
        self, link: _Link, fault: Fault, data: bytes, writer: asyncio.StreamWriter
    ) -> bytes:
        """What is left to be passed on after the fault had its say."""
        head, rest = data[: fault.after - fault.passed], data[fault.after - fault.passed :]
        fault.passed += len(head)
        if fault.passed < fault.after:
            return data
        self._fault = None
        self.faults += 1
        fault.happened = True  # set before the bytes go out: their reader may ask at once
        writer.write(head)
        await writer.drain()
        match fault.act:
            case "close" | "reset":
                link.end(rudely=fault.act == "reset")
            case "half-close":
                link.client.write_eof()
                link.ended = True
                if fault.way == "request":
                    return rest
            case "silence":
                link.silent = True
            case "delay":
                await asyncio.sleep(fault.seconds)
                return rest
            case "throttle":
                for index in range(len(rest)):
                    if writer.is_closing():
                        break
                    writer.write(rest[index : index + 1])
                    await asyncio.sleep(min(0.02, fault.seconds / len(rest)))
        return b""
