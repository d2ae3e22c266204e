"""Fifty tasks, five payments: every task gets an answer, every payment runs once."""

import asyncio
from collections import Counter

from twicesafe import AsyncReceiver

runs: Counter[str] = Counter()


async def charge(payment: str) -> str:
    runs[payment] += 1
    await asyncio.sleep(0.05)  # the bank takes its time
    return f"receipt of {payment}"


async def main() -> None:
    async with AsyncReceiver.open("sqlite:///payments.db") as receiver:
        deliveries = [f"tx-{n % 5}" for n in range(50)]
        outcomes = await asyncio.gather(
            *(receiver.process(payment, charge, payment) for payment in deliveries)
        )
    replayed = sum(outcome.replayed for outcome in outcomes)
    print(f"{len(outcomes)} deliveries, {sum(runs.values())} runs, {replayed} replays")
    print("runs per payment:", dict(sorted(runs.items())))
    assert set(runs.values()) == {1}
    assert all(o.value == f"receipt of {p}" for o, p in zip(outcomes, deliveries, strict=True))


asyncio.run(main())
