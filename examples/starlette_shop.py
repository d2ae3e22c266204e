"""Starlette: the middleware, with a login outside it that replays must pass too.

uvicorn starlette_shop:app        or granian, or hypercorn
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from twicesafe import AsyncReceiver, current_key
from twicesafe.asgi import IdempotencyMiddleware
from twicesafe.http import HttpPolicy

TOKENS = {"Bearer a": "ana", "Bearer b": "ben"}
receiver = AsyncReceiver.open("sqlite:///keys.db")
charges: list[str] = []


class Login:
    """Who is it? Asked before the layer, so a token that was revoked gets no stored answer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            token = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
            if token not in TOKENS:
                await PlainTextResponse("who are you?", 401)(scope, receive, send)
                return
            scope.setdefault("state", {})["user"] = TOKENS[token]
        await self.app(scope, receive, send)


async def charge(request: Request) -> JSONResponse:
    key = current_key()
    charges.append(request.state.user)
    return JSONResponse({"charge": len(charges), "key": None if key is None else key.value}, 201)


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    async with receiver:
        yield


# A key belongs to the user, not to the token: a new token between two retries changes nothing.
policy = HttpPolicy(scope=lambda request: request.native["state"]["user"])
app = Starlette(
    routes=[Mount("/v1", routes=[Route("/charges", charge, methods=["POST"])])],
    middleware=[
        Middleware(Login),
        Middleware(IdempotencyMiddleware, receiver=receiver, policy=policy),
    ],
    lifespan=lifespan,
)


async def main() -> None:
    transport = httpx.ASGITransport(app)
    async with (
        lifespan(app),
        httpx.AsyncClient(transport=transport, base_url="http://shop") as shop,
    ):

        async def post(token: str, key: str) -> str:
            headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": key}
            reply = await shop.post("/v1/charges", json={"cents": 500}, headers=headers)
            again = ", again" if "Idempotent-Replayed" in reply.headers else ""
            return f"{reply.status_code}{again}: {reply.text}"

        print("ana:                  ", await post("a", "order-7"))
        print("ana, again:           ", await post("a", "order-7"))
        print("ben, with the key:    ", await post("b", "order-7"))
        TOKENS["Bearer c"] = TOKENS.pop("Bearer a")
        print("ana's token, revoked: ", await post("a", "order-7"))
        print("ana, with a new one:  ", await post("c", "order-7"))
    assert charges == ["ana", "ben"]


if __name__ == "__main__":
    asyncio.run(main())
