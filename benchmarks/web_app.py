"""One contestant of the HTTP cases as a process: ``python -m benchmarks.web_app NAME STORE PORT``.

The application is FastAPI as people write it: an order is validated, 200 bytes of JSON are answered.
Who guards it comes as it ships.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from . import ours, peers
from .case import FLOOR
from .workload import RESULT


class Order(BaseModel):
    amount: int
    currency: str
    items: list[str] = []


def application() -> FastAPI:
    app = FastAPI()

    @app.post("/charges", status_code=201)
    async def charge(order: Order) -> dict[str, Any]:
        return RESULT

    return app


def with_ours(app: FastAPI, url: str) -> None:
    from twicesafe import AsyncReceiver
    from twicesafe.asgi import IdempotencyMiddleware

    app.add_middleware(IdempotencyMiddleware, receiver=AsyncReceiver.open(url or "memory://"))


def with_idemkit(app: FastAPI, url: str) -> None:
    import idemkit

    backend = idemkit.RedisBackend.from_url(url) if url else idemkit.InMemoryBackend()
    config = idemkit.HttpConfig(scope_mode="single_tenant")
    app.add_middleware(idemkit.IdempotencyMiddleware, backend=backend, config=config)


def with_asgi_idempotency_header(app: FastAPI, url: str) -> None:
    from idempotency_header_middleware import IdempotencyHeaderMiddleware
    from idempotency_header_middleware.backends import MemoryBackend, RedisBackend
    from redis.asyncio import Redis

    backend = RedisBackend(Redis.from_url(url)) if url else MemoryBackend()
    app.add_middleware(IdempotencyHeaderMiddleware, backend=backend)


GUARDS: dict[str, Any] = {
    FLOOR: lambda app, url: None,
    ours.NAME: with_ours,
    peers.IDEMKIT: with_idemkit,
    peers.ASGI_IDEMPOTENCY_HEADER: with_asgi_idempotency_header,
}


def main(name: str, url: str, port: str) -> None:
    warnings.simplefilter("ignore")
    app = application()
    GUARDS[name](app, url)
    uvicorn.run(app, port=int(port), loop="asyncio", log_level="critical", access_log=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
