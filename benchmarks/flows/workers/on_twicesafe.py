"""twicesafe: a durable function and the completer."""

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from effects import STEPS, effect  # type: ignore[import-not-found]

from twicesafe import Policy, Receiver, Steps

folder, place, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
LEASE = 2.0
receiver = Receiver.open(place, policy=Policy(lease=LEASE))


@receiver.durable(key="flow", scope=("flows",))
def five_steps(steps: Steps, flow: str) -> str:
    for number in range(1, STEPS + 1):
        steps.run(f"step-{number}", effect, folder, flow, number)
    return flow


if count < 0:
    while receiver.complete_abandoned().completed == 0:
        time.sleep(0.02)
    print(json.dumps([]))
elif count == 0:
    five_steps("dying")
else:
    took = []
    for _ in range(count + 5):
        start = time.perf_counter()
        five_steps(f"flow-{time.time_ns()}")
        took.append(time.perf_counter() - start)
    print(json.dumps(took[5:]))
receiver.close()
