"""DBOS: a workflow of steps; what a dead worker left is recovered at the launch."""

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from dbos import DBOS, SetWorkflowID
from effects import STEPS, effect  # type: ignore[import-not-found]

folder, place, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
DBOS(
    config={
        "name": "flows",
        "system_database_url": place,
        "log_level": "CRITICAL",
        "executor_id": "one",
        "application_version": "1",
    }
)


@DBOS.step()
def one_step(flow: str, number: int) -> str:
    return effect(folder, flow, number)


@DBOS.workflow()
def five_steps(flow: str) -> str:
    for number in range(1, STEPS + 1):
        one_step(flow, number)
    return flow


DBOS.launch()
if count < 0:
    DBOS.retrieve_workflow("dying").get_result()
    print(json.dumps([]))
elif count == 0:
    with SetWorkflowID("dying"):
        five_steps("dying")
else:
    took = []
    for _ in range(count + 5):
        name = f"flow-{time.time_ns()}"
        start = time.perf_counter()
        with SetWorkflowID(name):
            five_steps(name)
        took.append(time.perf_counter() - start)
    print(json.dumps(took[5:]))
DBOS.destroy()
