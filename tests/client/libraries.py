"""The libraries, behind one face: what a test does, it does with each of them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import aiohttp
import httpx
import httpx2
import requests

from twicesafe import Backoff
from twicesafe.client import Budget, RetryPolicy, Sent, sent_of
from twicesafe.client import httpx as for_httpx
from twicesafe.client import httpx2 as for_httpx2
from twicesafe.client.aiohttp import RetryMiddleware
from twicesafe.client.requests import RetryAdapter

QUICK = RetryPolicy(backoff=Backoff(first=0.001, most=0.002))

ERRORS = (
    httpx.TransportError,
    httpx2.TransportError,
    requests.RequestException,
    aiohttp.ClientError,
    TimeoutError,
)

HTTPX: dict[str, tuple[Any, Any]] = {
    "httpx": (httpx, for_httpx),
    "httpx2": (httpx2, for_httpx2),
}
"""Each with our module for it."""


@dataclass
class Got:
    status: int
    body: bytes
    headers: dict[str, str]
    sent: Sent | None


class Library:
    """One library with one client: ``send(url, body)`` and the waits it made."""

    def __init__(self, name: str, budget: Budget | None = None) -> None:
        self.name = name
        self.budget = budget
        self.tls = False
        self.waits: list[float] = []

    def __repr__(self) -> str:
        return self.name

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)

    async def wait_async(self, seconds: float) -> None:
        self.wait(seconds)

    def send(
        self,
        url: str,
        body: Any = b'{"amount":5}',
        method: str = "POST",
        *,
        policy: RetryPolicy = QUICK,
        headers: dict[str, str] | None = None,
        timeout: float = 20,
        tls: bool = False,
    ) -> Got:
        self.tls = tls
        lines = {"Content-Type": "application/json", **(headers or {})}
        return getattr(self, "_" + self.name)(url, body, method, policy, lines, timeout)

    def _httpx(self, url: str, body: Any, method: str, policy: Any, lines: Any, limit: Any) -> Got:
        its, ours = HTTPX[self.name]
        plain = its.HTTPTransport(verify=self.tls)  # its set-up takes long
        transport = ours.RetryTransport(plain, policy=policy, budget=self.budget, sleep=self.wait)
        with its.Client(transport=transport, timeout=limit, follow_redirects=True) as client:
            made = client.request(method, url, content=_made(body), headers=lines)
        return Got(made.status_code, made.content, _lower(made.headers), sent_of(made))

    def _httpx_async(self, *given: Any) -> Got:
        return asyncio.run(self._httpx_awaited(*given))

    async def _httpx_awaited(
        self, url: str, body: Any, method: str, policy: Any, lines: Any, limit: Any
    ) -> Got:
        its, ours = HTTPX[self.name.removesuffix("_async")]
        plain = its.AsyncHTTPTransport(verify=self.tls)
        transport = ours.AsyncRetryTransport(
            plain, policy=policy, budget=self.budget, sleep=self.wait_async
        )
        async with its.AsyncClient(
            transport=transport, timeout=limit, follow_redirects=True
        ) as client:
            content = _awaited(_made(body)) if callable(body) else body
            made = await client.request(method, url, content=content, headers=lines)
        return Got(made.status_code, made.content, _lower(made.headers), sent_of(made))

    _httpx2, _httpx2_async = _httpx, _httpx_async

    def _requests(
        self, url: str, body: Any, method: str, policy: Any, lines: Any, limit: Any
    ) -> Got:
        with requests.Session() as session:
            adapter = RetryAdapter(policy=policy, budget=self.budget, sleep=self.wait)
            session.mount("http://", adapter)
            session.mount("https://", adapter)
            made = session.request(method, url, data=_made(body), headers=lines, timeout=limit)
            return Got(made.status_code, made.content, _lower(made.headers), sent_of(made))

    def _aiohttp(self, *given: Any) -> Got:
        return asyncio.run(self._aiohttp_awaited(*given))

    async def _aiohttp_awaited(
        self, url: str, body: Any, method: str, policy: Any, lines: Any, limit: Any
    ) -> Got:
        middleware = RetryMiddleware(policy=policy, budget=self.budget, sleep=self.wait_async)
        limits = aiohttp.ClientTimeout(total=60, sock_read=limit)
        async with aiohttp.ClientSession(middlewares=[middleware], timeout=limits) as session:
            data = _awaited(_made(body)) if callable(body) else body
            async with session.request(method, url, data=data, headers=lines) as made:
                content = b"".join([piece async for piece in made.content.iter_any()])
                assert content == await made.read() or not made._body
                return Got(made.status, content, _lower(made.headers), sent_of(made))


LIBRARIES = ("httpx", "httpx_async", "httpx2", "httpx2_async", "requests", "aiohttp")


def _made(body: Any) -> Any:
    return body() if callable(body) else body


async def _awaited(pieces: Any) -> Any:
    for piece in pieces:
        yield piece


def _lower(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
