"""FastAPI: the middleware, the claim as a dependency, the key in the OpenAPI document.

uvicorn fastapi_shop:app        or granian, or hypercorn
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from twicesafe import AsyncReceiver
from twicesafe.asgi import IdempotencyMiddleware
from twicesafe.http import HttpPolicy
from twicesafe.integrations.fastapi import RequestClaim, describe

receiver = AsyncReceiver.open("sqlite:///keys.db")
policy = HttpPolicy(required=("POST /charges",))
charges: list[int] = []


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    async with receiver:
        yield


app = FastAPI(lifespan=lifespan)
app.add_middleware(IdempotencyMiddleware, receiver=receiver, policy=policy)
describe(app, policy)


class Order(BaseModel):
    cents: int


@app.post("/charges", status_code=201)
async def charge(order: Order, claim: RequestClaim) -> dict[str, int]:
    if order.cents > 1000:
        raise HTTPException(402, "the card was declined")
    charges.append(order.cents)
    assert claim is not None  # the policy requires a key here
    return {"charge": len(charges), "attempt": claim.attempt}


async def main() -> None:
    transport = httpx.ASGITransport(app)
    async with (
        lifespan(app),
        httpx.AsyncClient(transport=transport, base_url="http://shop") as shop,
    ):

        async def post(cents: int, key: str | None) -> str:
            headers = {} if key is None else {"Idempotency-Key": key}
            reply = await shop.post("/charges", json={"cents": cents}, headers=headers)
            again = ", again" if "Idempotent-Replayed" in reply.headers else ""
            return f"{reply.status_code}{again}: {reply.text[:60]}"

        print("the request:     ", await post(500, "order-7"))
        print("the same again:  ", await post(500, "order-7"))
        print("another one:     ", await post(900, "order-7"))
        print("declined:        ", await post(5000, "order-8"))
        print("declined again:  ", await post(5000, "order-8"))
        print("without a key:   ", await post(500, None))
    assert charges == [500]
    described = app.openapi()["paths"]["/charges"]["post"]
    print("in OpenAPI:      ", described["parameters"][0]["name"], *described["responses"])


if __name__ == "__main__":
    asyncio.run(main())
