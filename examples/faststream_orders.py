"""A FastStream service that handles each order once, whatever the broker delivers again."""

import asyncio

from faststream.redis import RedisBroker, TestRedisBroker

from twicesafe import AsyncReceiver
from twicesafe.integrations.faststream import IdempotentMessages

receiver = AsyncReceiver.open("memory://")  # in real life one that all workers share: redis://…
broker = RedisBroker(middlewares=[IdempotentMessages(receiver)])
charged: list[str] = []


@broker.subscriber(stream="orders")
async def charge(order: dict) -> str:
    charged.append(order["id"])
    return f"charged {order['id']}"


async def main() -> None:
    in_memory = TestRedisBroker(broker, connect_only=False)  # else FastStream(broker).run()
    async with receiver, in_memory:
        for _ in range(2):  # the producer sends it twice, under one id
            key = {"Idempotency-Key": '"o-1"'}
            await broker.publish({"id": "o-1"}, stream="orders", headers=key)


asyncio.run(main())
print("charged:", charged)
assert charged == ["o-1"]
