"""Litestar: the middleware of an application.

uvicorn litestar_shop:app        or granian, or hypercorn
"""

import asyncio

import httpx
from litestar import Litestar, post
from litestar.exceptions import HTTPException
from litestar.middleware import DefineMiddleware
from litestar.params import JSONBody

from twicesafe import AsyncReceiver, current_claim
from twicesafe.asgi import IdempotencyMiddleware

receiver = AsyncReceiver.open("sqlite:///keys.db")
charges: list[int] = []


@post("/charges")
async def charge(data: JSONBody[dict[str, int]]) -> dict[str, int]:
    if data["cents"] > 1000:
        raise HTTPException("the card was declined", status_code=402)
    claim = current_claim()
    charges.append(data["cents"])
    return {"charge": len(charges), "attempt": 0 if claim is None else claim.attempt}


app = Litestar(
    [charge],
    middleware=[DefineMiddleware(IdempotencyMiddleware, receiver=receiver)],
    on_shutdown=[receiver.close],
    logging_config=None,
)


async def main() -> None:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as shop:

        async def send(cents: int, key: str) -> str:
            headers = {"Idempotency-Key": key}
            reply = await shop.post("/charges", json={"cents": cents}, headers=headers)
            again = ", again" if "Idempotent-Replayed" in reply.headers else ""
            return f"{reply.status_code}{again}: {reply.text[:60]}"

        print("the request:     ", await send(500, "order-7"))
        print("the same again:  ", await send(500, "order-7"))
        print("another one:     ", await send(900, "order-7"))
        print("declined:        ", await send(5000, "order-8"))
        print("declined again:  ", await send(5000, "order-8"))
    await receiver.close()
    assert charges == [500]


if __name__ == "__main__":
    asyncio.run(main())
