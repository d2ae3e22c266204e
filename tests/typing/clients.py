"""Pins what a type checker sees of the clients. Never run."""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from typing import assert_type

import aiohttp
import httpx
import requests

from twicesafe.client import Budget, RetryPolicy, Sent, sent_of
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
requests.Session().mount("https://", RetryAdapter(policy=policy))

assert_type(inject({"a": "b"}, step="charge"), dict[str, str])
assert_type(extract({"a": "b"}), str | None)
assert_type(extract([("a", b"b")]), str | None)

RetryPolicy(3)  # type: ignore[call-arg]
RetryTransport(policy=HttpPolicy())  # type: ignore[arg-type]


async def session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(middlewares=[RetryMiddleware(policy=policy)])
