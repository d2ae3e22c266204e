"""Temporal: a workflow of activities, a worker and a client in one process."""

import asyncio
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from effects import STEPS, effect  # type: ignore[import-not-found]
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

TIMEOUT = 2.0


@activity.defn
def one_step(folder: str, flow: str, number: int) -> str:
    return effect(folder, flow, number)


@workflow.defn
class FiveSteps:
    @workflow.run
    async def run(self, folder: str, flow: str) -> str:
        for number in range(1, STEPS + 1):
            await workflow.execute_activity(
                one_step,
                args=[folder, flow, number],
                start_to_close_timeout=timedelta(seconds=TIMEOUT),
            )
        return flow


async def main(folder: str, place: str, count: int) -> None:
    client = await Client.connect(place)
    async with Worker(
        client,
        task_queue="flows",
        workflows=[FiveSteps],
        activities=[one_step],
        activity_executor=ThreadPoolExecutor(4),
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):

        async def flow(name: str) -> None:
            await client.execute_workflow(
                FiveSteps.run, args=[folder, name], id=name, task_queue="flows"
            )

        if count < 0:
            await client.get_workflow_handle("dying").result()
            print(json.dumps([]))
        elif count == 0:
            await flow("dying")
        else:
            took = []
            for _ in range(count + 5):
                start = time.perf_counter()
                await flow(f"flow-{time.time_ns()}")
                took.append(time.perf_counter() - start)
            print(json.dumps(took[5:]))


asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
