"""Restate: a handler of a service, whose steps are `ctx.run`; PLACE is ``ingress,admin,own port``."""

import asyncio
import json
import sys
import threading
import time
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
import hypercorn.asyncio
import hypercorn.config
import restate
from effects import STEPS, effect  # type: ignore[import-not-found]

folder, place, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
ingress, admin, port = place.split(",")
flows = restate.Service("flows")


@flows.handler()
async def five_steps(ctx: restate.Context, flow: str) -> str:
    for number in range(1, STEPS + 1):
        await ctx.run_typed(f"step-{number}", partial(effect, folder, flow, number))
    return flow


def serve() -> None:
    config = hypercorn.config.Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.loglevel = "critical"
    app = restate.app(services=[flows])
    asyncio.run(hypercorn.asyncio.serve(app, config, shutdown_trigger=asyncio.Event().wait))


def ask(url: str, body: object, key: str = "") -> object:
    fields = {"content-type": "application/json"}
    if key:
        fields["idempotency-key"] = key
    request = urllib.request.Request(url, json.dumps(body).encode(), fields)
    with urllib.request.urlopen(request, timeout=120) as reply:
        return json.loads(reply.read())


def register() -> None:
    """The server asks the new worker what it can do."""
    for _ in range(200):
        try:
            ask(f"{admin}/deployments", {"uri": f"http://127.0.0.1:{port}", "force": True})
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.05)
        else:
            return


threading.Thread(target=serve, daemon=True).start()
call = f"{ingress}/flows/five_steps"
if count >= 0:
    register()
if count <= 0:  # the same key: the answer of the one that began
    ask(call, "dying", "dying")
    print(json.dumps([]))
else:
    took = []
    for _ in range(count + 5):
        start = time.perf_counter()
        ask(call, f"flow-{time.time_ns()}")
        took.append(time.perf_counter() - start)
    print(json.dumps(took[5:]))
