"""The SDK of OpenAI on our transports: one key per call, also when it is sent again."""

from __future__ import annotations

from collections.abc import Callable

import httpx2
import openai
import pytest

from tests.client.flaky import Flaky, response
from tests.client.libraries import QUICK
from twicesafe.client import sent_of
from twicesafe.client.httpx2 import AsyncRetryTransport, RetryTransport

Make = Callable[..., Flaky]

ANSWER = response(
    200,
    b'{"id":"c-1","object":"chat.completion","created":1,"model":"m","choices":[]}',
    "Content-Type: application/json",
)


def test_one_key_across_retries(flaky: Make):
    server = flaky(response(503), "lose", ANSWER)
    with httpx2.Client(transport=RetryTransport(policy=QUICK)) as http:
        sdk = openai.OpenAI(api_key="k", base_url=server.url, http_client=http, max_retries=0)
        answer = sdk.chat.completions.with_raw_response.create(model="m", messages=[])
    assert answer.parse().id == "c-1"
    sent = sent_of(answer.http_response)
    assert sent is not None
    assert server.keys == [sent.key] * 3


async def test_one_key_across_awaited_retries(flaky: Make):
    server = flaky(response(503), "lose", ANSWER)
    async with httpx2.AsyncClient(transport=AsyncRetryTransport(policy=QUICK)) as http:
        sdk = openai.AsyncOpenAI(api_key="k", base_url=server.url, http_client=http, max_retries=0)
        answer = await sdk.chat.completions.with_raw_response.create(model="m", messages=[])
    assert answer.parse().id == "c-1"
    sent = sent_of(answer.http_response)
    assert sent is not None
    assert server.keys == [sent.key] * 3


def test_a_given_key_is_kept_across_the_retries_of_the_sdk_too(flaky: Make):
    """Each of them is a call of its own to us: without a given key it gets a new one."""
    server = flaky(response(500, b"", "retry-after-ms: 1"))  # final to us, but not to the SDK
    with httpx2.Client(transport=RetryTransport(policy=QUICK)) as http:
        sdk = openai.OpenAI(api_key="k", base_url=server.url, http_client=http, max_retries=1)
        for headers in ({"Idempotency-Key": "given"}, {}):
            with pytest.raises(openai.InternalServerError):
                sdk.chat.completions.create(model="m", messages=[], extra_headers=headers)
    assert server.keys[:2] == ["given"] * 2
    assert len(set(server.keys[2:])) == 2
