"""Taskiq tasks that run once per task id: a repeat has the recorded result."""

import asyncio

from taskiq import InMemoryBroker

from twicesafe import AsyncReceiver
from twicesafe.integrations.taskiq import idempotent_task

receiver = AsyncReceiver.open("memory://")  # in real life one that all workers share: redis://…
broker = InMemoryBroker(await_inplace=True)
charged: list[str] = []


@broker.task
@idempotent_task(receiver)
async def charge(order: str) -> str:
    charged.append(order)
    return f"charged {order}"


async def main() -> None:
    async with receiver:
        await broker.startup()
        for delivery in (1, 2):  # the second one as after a lost acknowledgement
            task = await charge.kicker().with_task_id("task-1").kiq("o-1")
            result = await task.wait_result(timeout=20)
            print(f"delivery {delivery}:", result.return_value)
        await broker.shutdown()


asyncio.run(main())
print("charged:", charged)
assert charged == ["o-1"]
