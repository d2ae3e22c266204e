"""Pins what a type checker sees of the clients. Never run."""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from typing import assert_type

import aiohttp
import httpx
import httpx2
import requests

from twicesafe.client import Budget, RetryPolicy, Sent, sent_of
from twicesafe.client import httpx2 as for_httpx2
from twicesafe.client.aiohttp import RetryMiddleware
from twicesafe.client.httpx import AsyncRetryTransport, RetryTransport
from twicesafe.client.requests import RetryAdapter
from twicesafe.http import HttpPolicy
from twicesafe.propagation import extract, inject

policy = RetryPolicy(attempts=3, deadline=10, http=HttpPolicy.stripe())
assert_type(policy.replace(attempts=4), RetryPolicy)

client = httpx.Client(transport=RetryTransport(policy=policy, budget=Budget()))
response = client.post("https://bank.example/charges")
assert_type(sent_of(response), Sent | None)

awaited = httpx.AsyncClient(transport=AsyncRetryTransport(httpx.AsyncHTTPTransport()))
second = httpx2.Client(transport=for_httpx2.RetryTransport(policy=policy, budget=Budget()))
assert_type(second.post("https://bank.example/charges"), httpx2.Response)
transport = for_httpx2.AsyncRetryTransport(httpx2.AsyncHTTPTransport())
also_awaited = httpx2.AsyncClient(transport=transport)
requests.Session().mount("https://", RetryAdapter(policy=policy))

assert_type(inject({"a": "b"}, step="charge"), dict[str, str])
assert_type(extract({"a": "b"}), str | None)
assert_type(extract([("a", b"b")]), str | None)

RetryPolicy(3)  # type: ignore[call-arg]
RetryTransport(policy=HttpPolicy())  # type: ignore[arg-type]
RetryTransport(httpx2.HTTPTransport())  # type: ignore[arg-type]
for_httpx2.RetryTransport(httpx.HTTPTransport())  # type: ignore[arg-type]
httpx.Client(transport=for_httpx2.RetryTransport())  # type: ignore[arg-type]


def handle(plain: RetryTransport, second: for_httpx2.RetryTransport) -> None:
    assert_type(plain.handle_request(httpx.Request("POST", "/")), httpx.Response)
    assert_type(second.handle_request(httpx2.Request("POST", "/")), httpx2.Response)


async def session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(middlewares=[RetryMiddleware(policy=policy)])
