"""The dashboard, mounted in a service: what it receives, and what an operator may do, behind the service's login.

python examples/dashboard.py             take a few payments, look at the pages, end
python examples/dashboard.py 8000        keep serving; enter by http://127.0.0.1:8000/enter/ana
"""

import asyncio
import contextlib
import sys

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route

from twicesafe import AsyncReceiver, Policy
from twicesafe.dashboard import Access, dashboard
from twicesafe.observers import LogObserver

OPERATORS = {"ana"}


def enter(request: Request) -> Response:
    """Stands for your login. This one believes what the visitor says: do not copy that."""
    answer = RedirectResponse("/ops/")
    answer.set_cookie("user", request.path_params["user"], httponly=True, samesite="strict")
    return answer


def who(request: Request) -> Access:
    """Who this is, and what they may do: your login knows."""
    user = request.cookies.get("user", "")
    if not user:
        return Access(level="forbidden")
    return Access(level="all" if user in OPERATORS else "read-only", user=user, show_keys=True)


async def charge(cents: int) -> str:
    if cents < 0:
        raise ValueError("a negative amount")
    return f"charged {cents}"


async def main(port: int = 0) -> None:
    # Observers make the receiver count what it receives: the dashboard shows rates and ages of duplicates.
    async with AsyncReceiver.open(
        "sqlite:///shop.db", policy=Policy(max_attempts=1), observers=[LogObserver()]
    ) as receiver:
        for key, cents in (("tx-1", 500), ("tx-2", 700), ("tx-1", 500), ("tx-3", -1)):
            with contextlib.suppress(ValueError):  # tx-3 is parked: an operator must look at it
                await receiver.process(key, charge, cents)
        pages = dashboard(receiver, resolve_access=who)
        app = Starlette(routes=[Mount("/ops", pages), Route("/enter/{user}", enter)])
        if port:
            await uvicorn.Server(uvicorn.Config(app, port=port)).serve()
            return
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://localhost"
        ) as browser:
            for path in ("/ops/keys", "/enter/ana", "/ops/keys?state=parked"):
                page = await browser.get(path)
                print(path, page.status_code, "tx-3" in page.text)


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
